"""One rank: builds the model, trains three steps by the real Trainer, and writes what lived to a file.

Called as ``python -m vitmem.validate.distributed.child REQUEST.json OUT.json``, with the ranks in the environment.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vitmem.settings import TrainSettings

from ..build import build_model
from .storages import Storages

__all__ = ["main"]

STEPS = 3
#: A request is a few settings, none of which the model's builder needs to know.
_OF_THE_ENGINE = {"gpus": 1, "parallel": None, "offload": "none"}


class _Images(torch.utils.data.Dataset[Mapping[str, Any]]):
    def __init__(self, size: tuple[int, int], count: int) -> None:
        self.size, self.count = size, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"pixel_values": torch.rand(3, *self.size), "labels": index % 10}


class Watch:
    """What a rank notes at the moments of its steps; figures of the last step survive."""

    def __init__(self, storages: Storages) -> None:
        self.storages = storages
        self.trainer: Any = None
        self.moments: dict[str, Any] = {}

    def note(self, moment: str) -> None:
        """Bytes by kind now, and what is none of the kinds, one by one, with the operators that made it."""
        follow, engine = self.storages, self.trainer.model_wrapped
        parameters = list(self.trainer.model.parameters())
        kinds = {
            "parameters": follow.alive([_local(p) for p in parameters]),
            "gradients": follow.alive([_local(p.grad) for p in parameters if p.grad is not None]),
            "optimizer_state": follow.alive(_states(self.trainer, engine)),
            "buffers": follow.alive(self.trainer.model.buffers()),
        }
        known: set[int] = set()
        totals = {}
        for kind, found in kinds.items():
            totals[kind] = sum(size for key, size in found.items() if key not in known)
            known |= found.keys()
        others = sorted((size, op) for key, (size, op) in follow.live.items() if key not in known)
        self.moments[moment] = {"total": follow.total, "kinds": totals, "others": others[::-1]}


def _local(tensor: Tensor) -> Tensor:
    local = getattr(tensor, "_local_tensor", tensor)
    assert isinstance(local, Tensor)
    return local


def _states(trainer: Any, engine: Any) -> Iterator[Tensor]:
    """The optimizer's own tensors, and with DeepSpeed the fp32 weights that it updates."""
    optimizer = getattr(engine, "optimizer", None) or trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
            yield from getattr(optimizer, name, [])
        optimizer = optimizer.optimizer
    for state in optimizer.state.values():
        yield from (_local(value) for value in state.values() if isinstance(value, Tensor))


def _trainer(settings: TrainSettings, request: Mapping[str, Any], watch: Watch, folder: str) -> Any:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Followed(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            watch.storages.start("forward")
            loss = super().compute_loss(*args, **kwargs)
            watch.note("forward_end")
            watch.storages.start("backward")
            return loss

    class Moments(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            watch.note("rest")
            watch.storages.peaks.clear()
            watch.storages.start("forward")

        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            if not request.get("deepspeed"):
                step_begins(watch)

        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            watch.note("stepped")

    built = build_model(settings, "cpu")
    images = _Images(built.image_size, settings.bs * settings.accum * STEPS * 64)
    arguments = TrainingArguments(output_dir=folder, **_arguments(settings, request))
    return Followed(model=built.model, args=arguments, train_dataset=images, callbacks=[Moments()])


def _arguments(settings: TrainSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    return dict(
        per_device_train_batch_size=settings.bs,
        gradient_accumulation_steps=settings.accum,
        max_steps=STEPS,
        optim=settings.optim or "adamw_torch_fused",
        bf16=settings.precision == "bf16",
        gradient_checkpointing=settings.grad_checkpointing,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **{name: value for name in ("deepspeed", "fsdp", "fsdp_config") if (value := request.get(name))},
    )


def step_begins(watch: Watch) -> None:
    """The backward passes of a step are over."""
    watch.note("backward_end")
    watch.storages.start("optimizer_step")


def _patch_deepspeed(watch: Watch) -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    step = DeepSpeedEngine.step

    def followed(engine: Any, *args: Any, **kwargs: Any) -> Any:
        if engine.is_gradient_accumulation_boundary():
            step_begins(watch)
        return step(engine, *args, **kwargs)

    DeepSpeedEngine.step = followed


def _end_with(parent: int) -> None:
    """A rank does not outlive what started it, however that ended."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Train and write."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    settings = TrainSettings(**{**request["settings"], **_OF_THE_ENGINE})
    torch.set_num_threads(1)
    watch = Watch(Storages())
    if request.get("deepspeed"):
        _patch_deepspeed(watch)
    with tempfile.TemporaryDirectory() as folder:
        trainer = watch.trainer = _trainer(settings, request, watch, folder)
        watch.storages.adopt([*trainer.model.parameters(), *trainer.model.buffers()])
        with watch.storages.active():
            trainer.train()
    rank = int(torch.distributed.get_rank())
    document = {"rank": rank, "moments": watch.moments, "peaks": watch.storages.peaks}
    Path(sys.argv[2]).write_text(json.dumps(document), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
