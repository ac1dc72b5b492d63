"""All that a GPU can tell in under eight minutes: training steps, probes of kernels, the size of the context.

    python scripts/gpu_session.py OUT_FOLDER [--seconds 450] [--quick]

Writes ``steps.json``, which ``vitmem validate --corpus OUT_FOLDER`` replays, after every configuration, so that a
session that is cut off loses nothing: the same command goes on with the configurations that have no figure yet. And
``probes/GPU.json``. ``--quick`` takes a few small configurations. What takes too long, or kills its worker, is a row
with an error. A worker is replaced when it is no longer clean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ONE_CONFIGURATION_S = 75.0
QUICK = {"depth": 2, "bs": 2}

VIT_B, VIT_L = "vit_base_patch16_224", "vit_large_patch16_224"
SWIN_T, SWIN_B = "swin_tiny_patch4_window7_224", "swin_base_patch4_window7_224"
DINO_B, DINO_L = "facebook/dinov2-base", "facebook/dinov2-large"
HF_VIT, HF_SWIN = "google/vit-base-patch16-224", "microsoft/swin-tiny-patch4-window7-224"


def configurations() -> Iterator[dict[str, Any]]:
    """What says most comes first."""
    plain = {"loop": "plain"}
    for model, bs in ((VIT_B, 32), (SWIN_T, 32), (DINO_B, 16), (VIT_L, 16), (SWIN_B, 16), (HF_VIT, 32), (HF_SWIN, 32)):
        for precision in ("fp32", "bf16"):
            yield {"model": model, "bs": bs, "precision": precision}
    for precision in ("fp16", "pure-bf16"):
        for model, bs in ((VIT_B, 32), (SWIN_T, 32), (DINO_B, 16)):
            yield {"model": model, "bs": bs, "precision": precision}
    for model, bs in ((VIT_B, 64), (SWIN_T, 32), (DINO_B, 32), (VIT_L, 32), (SWIN_B, 32)):
        yield {"model": model, "bs": bs, "precision": "bf16", "grad_checkpointing": True}
    for attn in ("eager", "sdpa"):
        for model in (VIT_B, SWIN_T, DINO_B):
            yield {"model": model, "bs": 16, "precision": "bf16", "attn": attn} | plain
    for kernel in ("efficient", "cudnn", "math"):
        yield {"model": VIT_B, "bs": 16, "precision": "bf16", "sdpa_kernel": kernel}
    for optim in ("adamw_torch", "adamw_torch_fused", "sgd", "sgd-momentum"):
        yield {"model": VIT_B, "bs": 16, "precision": "fp32", "optim": optim} | plain
    for res in (384, 512):
        for model in (VIT_B, SWIN_T, DINO_B, VIT_L):
            res_of_model = res if model != DINO_B else res // 14 * 14
            fits = model != SWIN_T or res == 512
            yield {"model": model, "bs": 8, "precision": "bf16", "res": res_of_model if fits else 448}
    yield {"model": VIT_B, "bs": 32, "precision": "bf16", "loop": "timm"}
    yield {"model": SWIN_T, "bs": 32, "precision": "bf16", "loop": "timm", "drop_path": 0.2}
    yield {"model": VIT_B, "bs": 16, "precision": "bf16", "dropout": 0.1, "attn_dropout": 0.1}
    yield {"model": VIT_B, "bs": 16, "precision": "bf16", "accum": 4}


def quick() -> Iterator[dict[str, Any]]:
    """The first kinds of each, so small that a minute is enough."""
    yield {"model": VIT_B, "precision": "bf16", **QUICK}
    yield {"model": HF_VIT, "precision": "fp32", "grad_checkpointing": True, **QUICK}
    yield {"model": "no_such_model", "precision": "fp32"}


class Worker:
    """A child that answers a line with a line, in time or never."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--work"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer; a worker that died or takes too long is an error."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            ends = time.monotonic() + timeout_s
            while (line := self.lines.get(timeout=max(0.1, ends - time.monotonic()))) is not None:
                if line.startswith("ROW "):
                    row: dict[str, Any] = json.loads(line[4:])
                    return row
        except queue.Empty:
            return {"error": f"took more than {timeout_s:.0f} s"}
        except (OSError, ValueError):
            pass
        return {"error": "the worker died"}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def work() -> None:
    """The worker: settings, or ``{"probe": true}``, in; one line of JSON out for each."""
    from gpu_probes import probes
    from vitmem.settings import TrainSettings
    from vitmem.validate.cuda import measure

    for line in sys.stdin:
        question = json.loads(line)
        try:
            row = probes() if "probe" in question else measure(TrainSettings.of(**question)).to_dict()
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {(str(error) or 'nothing said').splitlines()[0]}"}
        print("ROW " + json.dumps(row), flush=True)


def main() -> int:
    if sys.argv[1:] == ["--work"]:
        work()
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=450.0, help="stop after so many (450)")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    (asked.folder / "probes").mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + asked.seconds
    worker = Worker()
    probed = worker.ask({"probe": True}, ONE_CONFIGURATION_S)
    worker.stop()
    if "error" in probed:
        print(f"no session: {probed['error']}", file=sys.stderr)
        return 4
    gpu = probed["gpu"]
    head = {"gpu": gpu, "driver": probed["driver"], "versions": probed["versions"]}
    wanted = list(quick() if asked.quick else configurations())
    try:
        rows = rows_before(asked.folder / "steps.json", head)
    except ValueError as error:
        print(f"no session: {error}", file=sys.stderr)
        return 2
    (asked.folder / "probes" / f"{gpu}.json").write_text(json.dumps(probed, indent=1) + "\n")
    rows = measure_all(wanted, asked.folder / "steps.json", head, rows, ends)
    left = len(wanted) - len(rows)
    print(f"{len(rows)} configurations, the last after {asked.seconds - (ends - time.monotonic()):.0f} s, on {gpu}")
    if left:
        print(f"{left} are left; the same command goes on with them", file=sys.stderr)
    return 0


def rows_before(path: Path, head: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of a session that was cut off; raises ValueError where it ran on something else."""
    if not path.exists():
        return []
    found: dict[str, Any] = json.loads(path.read_text())
    if {name: found.get(name) for name in head} != head:
        raise ValueError(f"{path} was measured with another GPU, driver or versions; give another folder")
    return [row for row in found["rows"] if "error" not in row]


def measure_all(
    asked: list[dict[str, Any]], path: Path, head: dict[str, Any], rows: list[dict[str, Any]], ends: float
) -> list[dict[str, Any]]:
    """What has no row yet, one configuration after the other while there is time; all rows."""
    from vitmem.validate.saved import write_rows

    worker, fresh = Worker(), True
    known = [row["settings"] for row in rows]
    for settings in (settings for settings in asked if settings not in known):
        left_s = ends - time.monotonic()
        if left_s < 1:
            break
        row = worker.ask(settings, min(ONE_CONFIGURATION_S, left_s))
        if not fresh and (row.get("left_bytes") or "error" in row):  # once more, in a process of its own
            worker.stop()
            worker = Worker()
            row = worker.ask(settings, max(1.0, min(ONE_CONFIGURATION_S, ends - time.monotonic())))
        fresh = "error" in row
        if fresh:
            worker.stop()
            worker = Worker()
        print(settings, row.get("error", row.get("allocated_bytes")), file=sys.stderr, flush=True)
        rows = [*rows, {"settings": settings, **row}]
        write_rows(path, head, rows)
    worker.stop()
    return rows


if __name__ == "__main__":
    sys.exit(main())
