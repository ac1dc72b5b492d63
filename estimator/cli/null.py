"""``vitmem null``."""

from __future__ import annotations

import click

from ..errors import InvalidRequest
from ..extra import real_libraries
from .null_device import DEFAULT_GPU, null_device, null_options
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]


@click.command("null", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--gpu", metavar="NAME", help=f"the GPU to stand in for  [default: {DEFAULT_GPU}]")
@click.option("--memory", metavar="SIZE", help="its memory, as 16GiB; without --gpu that of an sm80 device")
@click.option(
    "--steps", type=click.IntRange(min=0), default=0, metavar="N", help="end the command after N optimizer steps"
)
@null_options
@json_option
@out_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def command(
    *,
    words: tuple[str, ...],
    gpu: str | None,
    memory: str | None,
    steps: int,
    cudnn_workspace: str,
    timeout: float,
    as_json: bool,
    out: str | None,
    force: bool,
) -> int:
    """Run a training command under PyTorch's CUDA build on a GPU that is not there, and report its memory.

    The caching allocator, the choice of kernels and their buffers are PyTorch's own; kernels do nothing, and values
    read back are zero. For example: vitmem null --gpu rtx4090 -- python train.py --epochs 1

    Exit codes: the command's own; 3 when it failed out of memory; 4 cannot say, as where it uses no CUDA device.
    With --force also beside a real GPU. With --json the command's output goes to stderr.
    """
    target = target_of(out, force)
    if not words:
        raise InvalidRequest("no command to run; write it after --, such as: vitmem null -- python train.py")
    device = null_device(gpu, memory, cudnn_workspace)
    with real_libraries("null runs PyTorch's CUDA build"):
        from ..validate.null.command import watch

        done = watch(words, device, force=force, timeout_s=timeout, num_steps=steps, quiet=as_json)
    from ..report.null import null_report

    emit(null_report(done.to_dict()), as_json=as_json, target=target)
    return done.status
