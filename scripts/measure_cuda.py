"""Measure training steps on a CUDA device: rows of ``data/measurements``.

    python scripts/measure_cuda.py GPU OUT.json < SETTINGS.jsonl      # one JSON object of settings per line
    python scripts/measure_cuda.py GPU OUT.json --phases < SETTINGS.jsonl      # evaluation, resuming, last batches

Runs where torch sees a CUDA device, or believes that it does. A worker measures one configuration after the other, and
is replaced as soon as one leaves memory behind or fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "timm", "transformers", "accelerate", "peft")


def work() -> None:
    """The worker: settings in, one line of JSON out for each."""
    from vitmem.settings import TrainSettings
    from vitmem.validate import cuda, cuda_phases

    measure = cuda_phases.measure if "--phases" in sys.argv else cuda.measure

    for line in sys.stdin:
        try:
            row: dict[str, Any] = measure(TrainSettings.of(**json.loads(line))).to_dict()
        except Exception as error:
            row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print("ROW " + json.dumps(row), flush=True)


class Worker:
    """A child that measures until it is dirty."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--work", *sys.argv[3:]]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measured(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The row of one configuration; a worker that died is an error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(settings) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("ROW "):
                row: dict[str, Any] = json.loads(line[4:])
                return row
        return {"error": "the worker died"}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def versions() -> dict[str, str]:
    """What was measured with."""
    from importlib import metadata

    return {name: metadata.version(name) for name in PACKAGES}


def main() -> None:
    if sys.argv[1] == "--work":
        return work()
    gpu, path = sys.argv[1], Path(sys.argv[2])
    rows, worker, fresh = [], Worker(), True
    for line in sys.stdin:
        settings = json.loads(line)
        row = worker.measured(settings)
        if not fresh and (row.get("left_bytes") or "error" in row):  # once more, in a process of its own
            worker.stop()
            worker = Worker()
            row = worker.measured(settings)
        fresh = "error" in row
        if fresh:
            worker.stop()
            worker = Worker()
        print(settings, row.get("error", row.get("allocated_bytes")), file=sys.stderr, flush=True)
        rows.append({"settings": settings, **row})
    worker.stop()
    text = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps({"gpu": gpu, "versions": versions()})[1:-1]
    path.write_text(f'{{{head}, "rows": [\n{text}\n]}}\n')
    return None


if __name__ == "__main__":
    main()
