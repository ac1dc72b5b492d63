"""A real Trainer of transformers on the CPU: a tiny ViT and generated images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

NUM_IMAGES, BATCH = 28, 4


class Images(torch.utils.data.Dataset):
    """Generated images with labels."""

    def __init__(self, size: int = 32) -> None:
        self.size = size

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, place: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(place)
        return {"pixel_values": torch.randn(3, self.size, self.size, generator=generator), "labels": place % 5}


def tiny(**changes: Any) -> Any:
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        num_labels=5, **changes,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def make_trainer(folder: Path, model: Any = None, *, dataset: Any = None, kind: Any = None, **changes: Any) -> Any:
    options = {"callbacks": changes.pop("callbacks", None), "optimizers": changes.pop("optimizers", (None, None))}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "num_train_epochs": 2,
            "per_device_train_batch_size": BATCH,
            "save_strategy": "epoch",
            "eval_strategy": "epoch",
            "logging_strategy": "epoch",
            "report_to": [],
            "disable_tqdm": True,
            "optim": "adamw_torch",
            **changes,
        },
    )
    model = tiny() if model is None else model
    dataset = Images() if dataset is None else dataset
    make = transformers.Trainer if kind is None else kind
    return make(
        model=model,
        args=arguments,
        train_dataset=dataset,
        eval_dataset=torch.utils.data.Subset(dataset, range(4)),
        **options,
    )
