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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from vitmem.settings import TrainSettings

from ..build import build_model
from . import fsdp
from .rank import answered, gathered, witness
from .storages import Storages, loading
from .watch import FIRST_STEADY, STEPS, Watch, states

__all__ = ["main"]

#: A request is a few settings, none of which the model's builder needs to know.
_OF_THE_ENGINE = {"gpus": 1, "parallel": None, "offload": "none", "reshard_after_forward": None, "wrap_layers": None}


class _Images(torch.utils.data.Dataset[Mapping[str, Any]]):
    def __init__(self, size: tuple[int, int], count: int) -> None:
        self.size, self.count = size, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return {"pixel_values": torch.rand(3, *self.size), "labels": index % 10}


def _trainer(settings: TrainSettings, request: Mapping[str, Any], watch: Watch, folder: str) -> Any:
    from transformers import TrainingArguments

    built = build_model(settings, "cpu")
    sharded = request.get("fsdp")
    engine: dict[str, Any] = {"fsdp": True, "fsdp_config": fsdp.options(built.model, sharded)} if sharded else {}
    options = {"output_dir": folder, **_arguments(settings, request), **engine, **request.get("arguments", {})}
    arguments = TrainingArguments(**options)
    if sharded and not request.get("on_gpu"):
        fsdp.as_if_on_gpus()
    if not request.get("on_gpu"):
        arguments.__dict__["_setup_devices"] = torch.device("cpu")  # with an index every .to() would be a copy
    images = request.get("train_samples") or settings.bs * settings.accum * STEPS * 64
    return _followed(watch)(
        model=built.model,
        args=arguments,
        train_dataset=_Images(built.image_size, images),
        eval_dataset=_Images(built.image_size, request.get("eval_samples") or 0),
        compute_metrics=lambda _: {},
        data_collator=_collate(watch.storages),
        callbacks=[_moments(settings, watch)],
    )


def _followed(watch: Watch) -> Any:
    """A Trainer that says where a phase begins."""
    from transformers import Trainer

    class Followed(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            if watch.storages.phase == "evaluation":
                return super().compute_loss(*args, **kwargs)
            watch.storages.start("forward")
            loss = super().compute_loss(*args, **kwargs)
            watch.note("forward_end")
            watch.storages.start("backward")
            return loss

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            if self.accelerator.sync_gradients and not self.is_deepspeed_enabled:
                watch.backward_over()  # gradients are clipped next
            return loss

        def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
            watch.storages.start("evaluation")
            result = super().evaluation_loop(*args, **kwargs)
            watch.storages.start("after")
            return result

    return Followed


def _moments(settings: TrainSettings, watch: Watch) -> Any:
    """What a callback notes, and the EMA that a user's callback would keep."""
    from torch.optim import swa_utils
    from transformers import TrainerCallback

    class Moments(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            watch.storages.adopt(states(watch.trainer, watch.trainer.model_wrapped))  # of a checkpoint
            if settings.ema:
                make: Any = swa_utils.get_ema_multi_avg_fn
                self.averages: Any = swa_utils.AveragedModel(kwargs["model"], multi_avg_fn=make(0.999))

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            watch.step_begins()

        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            watch.note("stepped")

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if settings.ema:
                self.averages.update_parameters(kwargs["model"])

    return Moments()


def _collate(storages: Storages) -> Callable[[Any], dict[str, Any]]:
    from transformers import default_data_collator

    def collate(samples: Any) -> dict[str, Any]:
        with storages.aside():
            batch: dict[str, Any] = default_data_collator(samples)
        return batch

    return collate


def _arguments(settings: TrainSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    return dict(
        per_device_train_batch_size=settings.bs,
        gradient_accumulation_steps=settings.accum,
        max_steps=STEPS,
        optim=settings.optim or "adamw_torch_fused",
        bf16=settings.precision == "bf16",
        fp16=settings.precision == "fp16",
        gradient_checkpointing=settings.grad_checkpointing,
        use_cpu=not request.get("on_gpu"),
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **_evaluating(settings, request),
        deepspeed=request.get("deepspeed"),
        ddp_backend=request.get("ddp_backend"),
        **{name: getattr(settings, name) for name in ("ddp_bucket_cap_mb", "ddp_find_unused_parameters")},
    )


def _evaluating(settings: TrainSettings, request: Mapping[str, Any]) -> dict[str, Any]:
    if not request.get("eval_samples"):
        return {}
    return dict(
        eval_strategy="steps",
        eval_steps=FIRST_STEADY + 1,
        eval_accumulation_steps=settings.eval_accum,
        **({} if settings.eval_bs is None else {"per_device_eval_batch_size": settings.eval_bs}),
    )


def _patch_deepspeed(watch: Watch) -> None:
    """Tells ``watch`` where a step begins.

    What only the CPU has is switched off: an all-reduce in shared memory that is compiled at first use, for a minute
    (gloo reduces instead), and the check for instructions that make fp16 fast (torch computes in it without them).
    """
    from deepspeed import ops
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.engine import DeepSpeedEngine

    ops.__compatible_ops__["deepspeed_shm_comm"] = False
    get_accelerator().is_fp16_supported = lambda: True
    step = DeepSpeedEngine.step

    def followed(engine: Any, *args: Any, **kwargs: Any) -> Any:
        if engine.is_gradient_accumulation_boundary():
            watch.backward_over()
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
    watches: list[Watch] = []
    code = answered(
        Path(sys.argv[2]), lambda: _measured(request, watches), lambda: watches[0].storages if watches else None
    )
    sys.stderr.flush()
    os._exit(code)  # the other ranks may be waiting for a collective that this one will never take part in


def _measured(request: Mapping[str, Any], watches: list[Watch]) -> dict[str, Any]:
    """The document of this rank; ``watches`` gets what has been seen, also where the steps are not ended."""
    settings = TrainSettings(**{**request["settings"], **_OF_THE_ENGINE})
    torch.set_num_threads(1)
    follows = witness(request)
    watch = Watch(follows)
    watches.append(watch)
    if request.get("deepspeed"):
        _patch_deepspeed(watch)
    with tempfile.TemporaryDirectory() as folder:
        trainer = watch.trainer = _trainer(settings, request, watch, folder)
        watch.storages.adopt([*trainer.model.parameters(), *trainer.model.buffers()])
        with watch.storages.active(), loading(watch.storages):
            trainer.train(resume_from_checkpoint=request.get("resume_from"))
    rank = int(torch.distributed.get_rank())
    document = {"rank": rank, "moments": watch.moments, "peaks": watch.peaks, "first_step": watch.steps[1]}
    if request.get("on_gpu"):
        first = max(watch.steps[1].values())
        document |= {"first_step_bytes": first, **follows.document()}
    if request.get("gathers"):
        document["ranks"] = gathered(document)
    torch.distributed.destroy_process_group()
    return document


if __name__ == "__main__":
    main()
