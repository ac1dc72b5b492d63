"""``preflight(trainer)``: what the training that is about to begin will need, from the live Trainer."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
import vitmem
from transformers import Trainer
from transformers.integrations import deepspeed
from vitmem import Estimate, TrainSettings
from vitmem.errors import DoesNotFit, InvalidRequest, NotModelled, UnknownName, VitmemError
from vitmem.settings import torch_setting
from vitmem.units import format_bytes

from .callback import MemoryWarning
from .live import described, keywords, whole_shape
from .optimizers import check_groups, name_of

__all__ = ["estimate_of", "preflight"]

#: Methods whose overriding changes what a step keeps.
_OWN_METHODS = ("compute_loss", "training_step", "_prepare_inputs", "create_optimizer")


def preflight(
    trainer: Trainer,
    *,
    gpu: str | None = None,
    memory: str | None = None,
    res: int | tuple[int, int] | None = None,
    action: Literal["raise", "warn"] = "raise",
) -> Estimate | None:
    """Estimate before the first step; raises DoesNotFit where it will not fit, or warns with ``action="warn"``.

    ``gpu`` and ``memory`` are what it must fit into: the device of the training unless said. ``res`` is the image size,
    else that of the first image of the data set. None, with a warning that says why, where there is no honest figure:
    :func:`estimate_of` raises instead. Call it before ``trainer.train()``.
    """
    if action not in ("raise", "warn"):
        raise InvalidRequest(f"action {action!r} is unknown; choose raise or warn")
    try:
        estimate = estimate_of(trainer, gpu=gpu, memory=memory, res=res)
    except VitmemError as reason:
        warnings.warn(f"no estimate: {reason}", MemoryWarning, stacklevel=2)
        return None
    _judge(estimate, action)
    return estimate


def estimate_of(
    trainer: Trainer,
    *,
    gpu: str | None = None,
    memory: str | None = None,
    res: int | tuple[int, int] | None = None,
) -> Estimate:
    """The estimate of a live Trainer; raises NotModelled with what of it is not modelled.

    With ``model_init`` it is that of the model that Trainer has built by it, as every other will be.
    """
    _refuse_own_parts(trainer)
    asked, notes = _loop(trainer), ()
    device = _device(trainer, gpu, memory)
    pixels = _image_size(trainer) if res is None else TrainSettings(res=res).res  # type: ignore[arg-type]
    with _without_partitions(trainer), described(_model(trainer), asked) as live:
        optimizer = trainer.optimizer
        if optimizer is not None:
            check_groups(optimizer, live.settings, live.built.model, _model(trainer))
        own = keywords(live.settings)
        if (configuration := _deepspeed(trainer)) is not None:
            own["deepspeed"] = configuration
        if pixels is not None and pixels != live.built.image_size:
            own["res"] = _other_size(live.built, pixels)
        folder = own.pop("model")
        estimate = _named(lambda **more: vitmem.estimate(folder, **{**own, **more}), device)
        trainable = sum(whole_shape(p).numel() for p in _model(trainer).parameters() if p.requires_grad)
        if estimate.model.num_trainable_parameters != trainable:
            raise NotModelled(
                f"the model trains {trainable:,} parameters, the estimate {estimate.model.num_trainable_parameters:,}"
            )
        request = {**estimate.request, "model": live.name}
        model = dataclasses.replace(estimate.model, name=live.name)
        return dataclasses.replace(estimate, request=request, model=model, warnings=(*estimate.warnings, *notes))


def _model(trainer: Trainer) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model)


def _refuse_own_parts(trainer: Trainer) -> None:
    for name in _OWN_METHODS:
        if getattr(type(trainer), name) is not getattr(Trainer, name):
            raise NotModelled(
                f"{type(trainer).__name__} has its own {name}, which may keep more than Trainer's; MemoryCallback "
                "measures what it does, `vitmem estimate --training-args` answers for Trainer's own"
            )
    if trainer.compute_loss_func is not None:
        raise NotModelled(
            "compute_loss_func is the user's own: what it keeps is not known; MemoryCallback measures it, "
            "`vitmem estimate --training-args` answers for the model's own loss"
        )
    if trainer.args.n_gpu > 1:
        raise NotModelled("DataParallel over several GPUs of one process is not modelled; start one process per GPU")
    if trainer.is_fsdp_enabled and not trainer.args.fsdp:
        raise NotModelled("FSDP comes from accelerate's configuration, which is not read; give it as --fsdp")


def _loop(trainer: Trainer) -> dict[str, Any]:
    """The settings in the arguments, by the rules of ``--training-args``, with the optimizer that was passed in."""
    arguments: dict[str, Any] = trainer.args.to_dict()  # type: ignore[no-untyped-call]
    arguments.pop("deepspeed", None)
    settings = TrainSettings.of(None, training_args=arguments, deepspeed=_deepspeed(trainer))
    own = {
        name: getattr(settings, name)
        for name in (
            "loop", "precision", "bs", "accum", "optim", "clip_grad", "label_smoothing", "compile", "grad_checkpointing"
        )
    }  # fmt: skip
    own["torch"] = torch_setting(torch.__version__)
    if trainer.is_deepspeed_enabled:
        own |= {name: getattr(settings, name) for name in ("parallel", "offload")}
    if trainer.args.world_size > 1:
        own |= {"parallel": settings.parallel or "ddp", "gpus": trainer.args.world_size}
    if trainer.optimizer is not None:
        trained = [parameter for parameter in _model(trainer).parameters() if parameter.requires_grad]
        own["optim"] = name_of(trainer.optimizer, parameters=trained)
    elif trainer.args.weight_decay and not str(own["optim"]).startswith(("adamw", "lion", "adafactor")):
        raise NotModelled(f"{own['optim']} adds its weight decay to copies of the gradients, which is not modelled")
    return own


def _deepspeed(trainer: Trainer) -> dict[str, Any] | None:
    """The configuration that DeepSpeed gets, Trainer's or accelerate's own; None without DeepSpeed."""
    if not trainer.is_deepspeed_enabled:
        return None
    arguments: Any = trainer.args
    source = arguments.hf_deepspeed_config or trainer.accelerator.state.deepspeed_plugin.hf_ds_config
    document: dict[str, Any] = source.config
    return document


@contextlib.contextmanager
def _without_partitions(trainer: Trainer) -> Iterator[None]:
    """Under ZeRO-3 transformers cuts up every model that it builds: not the one that is built to be held against."""
    arguments: Any = trainer.args
    if not trainer.is_deepspeed_enabled or arguments.hf_deepspeed_config is None:
        yield
        return
    integration: Any = deepspeed
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration.set_hf_deepspeed_config(arguments.hf_deepspeed_config)


def _device(trainer: Trainer, gpu: str | None, memory: str | None) -> dict[str, str]:
    if gpu is not None or memory is not None:
        return {name: value for name, value in (("gpu", gpu), ("memory", memory)) if value is not None}
    if trainer.args.device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(trainer.args.device)
    return {"gpu": properties.name, "memory": f"{properties.total_memory // 1024}KiB"}


def _named(estimate: Any, device: Mapping[str, str]) -> Estimate:
    """Of a GPU that is not known by name only the memory counts."""
    try:
        found: Estimate = estimate(**device)
    except UnknownName:
        if "memory" not in device:
            raise
        found = estimate(memory=device["memory"])
    return found


def _image_size(trainer: Trainer) -> tuple[int, int] | None:
    """Height and width of the first image as the collator makes it; labels that are no classes are refused."""
    dataset: Any = trainer.train_dataset
    if dataset is None or not hasattr(dataset, "__getitem__"):
        return None
    try:
        batch = trainer.data_collator([dataset[0]])
    except Exception as error:
        raise NotModelled(f"the first image cannot be read ({type(error).__name__}: {error}); pass res=") from error
    labels = batch.get("labels")
    if isinstance(labels, torch.Tensor) and labels.is_floating_point():
        raise NotModelled("labels are floating point, as mixup makes them: the Trainer's loss for them is not modelled")
    pixels = batch.get("pixel_values")
    if not isinstance(pixels, torch.Tensor) or pixels.dim() != 4:
        raise NotModelled("the collator makes no pixel_values of (batch, channels, height, width); pass res=")
    return int(pixels.shape[-2]), int(pixels.shape[-1])


def _other_size(built: Any, pixels: tuple[int, int]) -> tuple[int, int]:
    """Images of another size than the model was built for, which only some classes take."""
    if built.library != "transformers" or not built.core.config.model_type.startswith("dinov"):
        height, width = built.image_size
        raise NotModelled(
            f"images are {pixels[0]}x{pixels[1]}, the model is built for {height}x{width}: interpolating the position "
            "embeddings in forward is not modelled; build the model for that size"
        )
    return pixels


def _judge(estimate: Estimate, action: str) -> None:
    verdict = estimate.verdict
    if verdict is None or verdict["fits"] == "yes":
        return
    peak = estimate.peak.reserved_bytes or estimate.peak.tensor_bytes
    figures = f"{format_bytes(peak)} of {format_bytes(verdict['usable_bytes'])} that {verdict['gpu']} leaves"
    if verdict["fits"] == "no":
        sentence = (
            f"the training will not fit: {figures}; `vitmem solve bs` finds a batch that does; gradient_checkpointing "
            "and bf16 save most"
        )
        if action == "raise":
            raise DoesNotFit(sentence)
    else:
        sentence = f"the training fits or not by what the CUDA context takes: {figures}"
    warnings.warn(sentence, MemoryWarning, stacklevel=3)
