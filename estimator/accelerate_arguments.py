"""What TrainingArguments hand on to accelerate: ``accelerator_config`` and ``ddp_*``, as transformers 5.24 reads them
(trainer.py, ``create_accelerator_and_postprocess`` and ``_build_accelerator_args``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .config_file import read_json
from .errors import InvalidRequest, NotModelled, did_you_mean

__all__ = ["accelerate_settings"]

_SECTION = "accelerator_config"
_ACCUMULATION = "gradient_accumulation_kwargs"
#: Without a GPU's memory behind them.
_HARMLESS = ("use_seedable_sampler", "non_blocking", "adjust_scheduler", "sync_with_dataloader")


def accelerate_settings(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Settings with the argument behind each.

    Raises ``InvalidRequest`` for what Trainer refuses, ``NotModelled`` for what changes the memory in a way that is
    not modelled.
    """
    _refuse(name, "", arguments, _OF_DDP)
    given = arguments.get(_SECTION)
    if isinstance(given, str):
        given = read_json(Path(given), "a JSON file of accelerate's options")
    options = _checked(name, _SECTION, given, {*_OF_BATCHES, _ACCUMULATION})
    _refuse(name, f"{_SECTION} ", options, _OF_BATCHES)
    accumulation = _checked(name, _ACCUMULATION, options.get(_ACCUMULATION), {"num_steps", *_OF_ACCUMULATION})
    steps = accumulation.get("num_steps", 1)
    accum = arguments.get("gradient_accumulation_steps", 1)
    if "num_steps" in accumulation and accum != 1:
        raise InvalidRequest(f"{name}: num_steps {steps} beside gradient_accumulation_steps {accum}; leave out one")
    if steps != 1:
        yield "accum", (steps, "num_steps")
    _refuse(name, f"{_ACCUMULATION} ", accumulation, _OF_ACCUMULATION)


def _checked(name: str, section: str, given: Any, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(given or {}, Mapping):
        raise InvalidRequest(f"{name}: {section} {given!r} is not valid; it must be a section in braces")
    options: Mapping[str, Any] = given or {}
    for option in options:
        if option not in {*known, *_HARMLESS}:
            raise InvalidRequest(f"{name}: {section} has no {option!r}{did_you_mean(option, {*known, *_HARMLESS})}")
    return options


def _refuse(name: str, section: str, given: Mapping[str, Any], usual: _Usual) -> None:
    for option, (values, reason) in usual.items():
        if given.get(option) not in (None, *values):
            raise NotModelled(f"{name}: {section}{option} {given[option]!r} {reason}")


#: Arguments with the values that change nothing, and the reason why no other is modelled.
_Usual = Mapping[str, tuple[tuple[Any, ...], str]]
_OF_DDP: _Usual = {
    "ddp_broadcast_buffers": ((True,), "is not modelled; leave it out"),
    "ddp_static_graph": ((False,), "makes DDP's buckets at other moments, which is not modelled; leave it out"),
    "ddp_backend": (("nccl",), "sends by other copies than NCCL, which are not modelled; leave it out"),
    "parallelism_config": ((), "divides the model in ways that are not modelled; leave it out"),
}
_OF_BATCHES: _Usual = {
    "split_batches": ((False,), "divides per_device_train_batch_size among the GPUs; leave it out and write the share"),
    "dispatch_batches": ((False,), "puts the batches of all GPUs on the first, which is not modelled; leave it out"),
    "even_batches": ((True,), "leaves the last batches of an epoch unequal, which is not modelled; leave it out"),
    "use_configured_state": ((False,), "takes its settings from a script, which the file does not show; leave it out"),
}
_OF_ACCUMULATION: _Usual = {
    "sync_each_batch": ((False,), "sends gradients in every micro-step, which is not modelled; leave it out"),
}
