"""What the commands with a null device share: the GPU that is asked for, and the options that only it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..device import device_of
from ..settings import TrainSettings
from ..units import parse_bytes
from ..validate.null.device import NullDevice

__all__ = ["DEFAULT_GPU", "null_device", "null_options"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

#: Where no GPU is named the estimator's kernels are this one's too.
DEFAULT_GPU = "a100-80g"


def null_options(command: _Decorated) -> _Decorated:
    """Decorate a command with ``--cudnn-workspace`` and ``--timeout``."""
    command = click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=3600.0,
        metavar="SECONDS",
        help="what a run in a process of its own may take  [default: 3600]",
    )(command)
    return click.option(
        "--cudnn-workspace",
        default="0",
        metavar="SIZE",
        help="what each cuDNN plan asks for on the null device, which does not know it  [default: 0]",
    )(command)


def null_device(gpu: str | None, memory: str | None, cudnn_workspace: str) -> NullDevice:
    """The device that the estimator would take ``--gpu`` and ``--memory`` for, its context of the expected size."""
    from ..gpus import find

    chosen = gpu if gpu is not None or memory is not None else DEFAULT_GPU
    device = device_of(TrainSettings(gpu=chosen, memory=memory))
    assert device.total_bytes is not None
    assert device.context is not None
    return NullDevice(
        name=f"GPU of {memory} (sm80)" if chosen is None else find(chosen).full_name,
        capability=device.gpu.capability,
        num_sms=device.gpu.num_sms,
        max_threads_per_sm=device.gpu.threads_per_sm,
        memory_bytes=device.total_bytes,
        context_bytes=device.context.expected_bytes,
        cudnn_workspace_bytes=0 if cudnn_workspace == "0" else parse_bytes(cudnn_workspace),
    )
