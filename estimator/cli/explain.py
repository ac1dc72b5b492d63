"""``vitmem explain``."""

from __future__ import annotations

import sys

import click

from ..errors import InvalidRequest
from .output import emit, json_option, out_options, target_of

__all__ = ["command"]

#: Of a longer log the end is read: that is where it died.
_MOST_BYTES = 20_000_000


@click.command("explain")
@click.argument("file", required=False)
@json_option
@out_options
def command(*, file: str | None, as_json: bool, out: str | None, force: bool) -> None:
    """Say what an out-of-memory error was, and which setting to change.

    FILE is a log or a saved traceback; without it, or as -, standard input is read: paste the error and end with
    Ctrl-D. PyTorch's messages since 1.0, cuBLAS, cuDNN, NCCL, and the host's own are known.

    Exit codes: 0 explained, 2 bad usage, 4 nothing recognised.
    """
    target = target_of(out, force)
    text = _read(file)
    from ..explain import explain
    from ..report.explain import explain_report

    emit(explain_report(explain(text).to_dict()), as_json=as_json, target=target)


def _read(file: str | None) -> str:
    if file is None or file == "-":
        return sys.stdin.buffer.read()[-_MOST_BYTES:].decode("utf-8", errors="replace")
    try:
        with open(file, "rb") as log:
            log.seek(0, 2)
            log.seek(max(log.tell() - _MOST_BYTES, 0))
            return log.read().decode("utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"cannot read {file!r}: {reason}; give a log, or paste the error into stdin") from error
