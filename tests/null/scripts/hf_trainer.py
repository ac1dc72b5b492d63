"""A Trainer script as people write it: fp16, evaluation with accuracy, checkpoints. A tiny model, made images."""

import sys

import numpy as np
import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.rand(3, 32, 32, generator=generator), "labels": index % 10}


def accuracy(predictions):
    return {"accuracy": float((np.argmax(predictions.predictions, axis=1) == predictions.label_ids).mean())}


config = ViTConfig(
    image_size=32,
    patch_size=8,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    num_labels=10,
)
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    fp16=True,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    logging_steps=1,
    report_to=[],
    dataloader_num_workers=1,
)
trainer = Trainer(
    model=ViTForImageClassification(config),
    args=arguments,
    train_dataset=Images(),
    eval_dataset=Images(),
    compute_metrics=accuracy,
)
print(trainer.train().global_step, "steps,", trainer.evaluate())
