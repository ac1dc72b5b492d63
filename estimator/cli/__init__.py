"""The command line: each command parses, makes one library call and prints a report.

Commands are imported when they are called, so that ``vitmem --help`` costs what click costs. One more command is one
module of this package with a click command called ``command``, and one row in ``COMMANDS``.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

__all__ = ["COMMANDS", "main", "program"]

COMMANDS: Mapping[str, str] = {
    "estimate": "What one configuration needs: the peak, what it is made of, layer by layer.",
    "solve": "The largest batch or resolution, or the smallest GPU, that fits.",
    "recommend": "Ranked configurations that fit a GPU and keep the effective batch.",
    "schedule": "Progressive resolution: micro-batch and accumulation of each phase.",
    "sweep": "A grid over resolutions, batches, precisions ...: one row for each.",
    "models": "The models that are known by name.",
    "gpus": "The GPUs that are known by name: memory, compute capability, peak rates.",
    "validate": "Run or rehearse the real step and compare it with the estimate.",
    "explain": "Say what a pasted out-of-memory error was, and which setting to change.",
    "monitor": "Follow the memory of a GPU or of a process while a training runs.",
    "null": "Run a training command on a CUDA device that is not there and report its memory.",
}

_INTERRUPTED = 130
_UNEXPECTED = 1


def program() -> NoReturn:
    """The whole process: :func:`main` without looking for reference cycles and without tearing modules down.

    Both together would be a fifth of its time, for memory that the system takes back at once. Asked to end, it ends its
    children first.
    """
    gc.disable()
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) == signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _end)
    try:
        code = main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # whoever read our output has left
        code = _UNEXPECTED
    os._exit(code)


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code is returned, and nothing ends in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        return _dispatch(args)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return _quietly()
    except Exception as error:
        if os.environ.get("VITMEM_DEBUG") == "1":
            raise
        from .. import __version__

        message = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(
            f"internal error: {message}; please report it with this command line (vitmem {__version__})", _UNEXPECTED
        )


def _dispatch(args: Sequence[str] | None) -> int:
    import click

    from ..errors import NoFamily, VitmemError
    from .group import make_group

    try:
        code = make_group(COMMANDS).main(args=args, prog_name="vitmem", standalone_mode=False)
    except NoFamily as error:
        hint = "`vitmem models` lists those that are, `vitmem estimate` rehearses the others"
        return _fail(f"{error}; {hint}", error.exit_code)
    except VitmemError as error:
        return _fail(str(error), error.exit_code)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "vitmem"
        return _fail(f"{error.format_message()}\ntype {path} --help to see what there is", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except click.exceptions.Abort:
        return _INTERRUPTED
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    text = f"error: {message}"
    if sys.stderr.isatty():
        from .output import wrapped

        text = wrapped(text)
    print(text, file=sys.stderr)
    return code


def _quietly() -> int:
    """Whoever read our output has left: write no more, not even what is still buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _UNEXPECTED
