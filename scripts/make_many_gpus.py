"""Make the table of ``docs/many-gpus.md``: what each engine holds, estimated and measured between real processes.

    python scripts/make_many_gpus.py [ENGINE ...]

Without an engine all rows are made anew, which takes a quarter of an hour; with some, theirs. Needs
``vitmem[deepspeed]``. One more row is one line of ``ROWS``; one more engine also says in ``BY_KIND`` where its ranks
keep what is none of the module's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitmem.device import CPU
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import TrainSettings
from vitmem.timeline import snapshot
from vitmem.validate.distributed.backend import most_loaded
from vitmem.validate.distributed.launch import measure_ranks

FILE = Path(__file__).resolve().parent.parent / "docs" / "many-gpus.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
COLUMNS = "model | engine | ranks | precision | | parameters | gradients | optimizer | communication | peak"

VIT = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 4, "res": "32", "bs": 2}
SWIN = {"model": "microsoft/swin-tiny-patch4-window7-224", "dim": 24, "res": "112", "window": 3, "bs": 2}
BUCKETS = {"reduce_bucket_size": 1_000_000}
ON_HOST = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
#: The loss scale of a model that was not trained: DeepSpeed begins with one that leaves steps out.
FP16 = {"enabled": "auto", "initial_scale_power": 4}
_KINDS = ("parameters", "gradients", "optimizer_state", "communication")
#: What engines make buffers with.
_EMPTY, _ZEROS = "aten.empty.memory_format", "aten.zeros.default"


class Row(NamedTuple):
    """One configuration; ``zero`` are options of DeepSpeed's file, ``more`` settings."""

    name: str
    model: Mapping[str, Any]
    engine: str
    precision: str
    ranks: int = 2
    zero: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}
    text: str = ""

    @property
    def asked(self) -> dict[str, Any]:
        return {
            **self.model,
            "parallel": self.engine,
            "precision": self.precision,
            "gpus": self.ranks,
            **self.more,
        }

    @property
    def deepspeed(self) -> dict[str, Any] | None:
        if not self.engine.startswith("zero"):
            return None
        return {
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            **{
                name: FP16 if name == "fp16" else {"enabled": "auto"}
                for name in ("fp16", "bf16")
                if name == self.precision
            },
            "zero_optimization": {"stage": int(self.engine[-1]), **BUCKETS, **self.zero},
        }


ROWS = (
    *(Row("ViT", VIT, "ddp", precision) for precision in ("fp32", "bf16")),
    *(Row("ViT", VIT, f"zero{stage}", precision) for stage in (1, 2, 3) for precision in ("fp32", "bf16", "fp16")),
    Row("ViT", VIT, "ddp", "bf16", ranks=4),
    *(Row("ViT", VIT, f"zero{stage}", "bf16", ranks=4) for stage in (1, 2, 3)),
    Row("ViT", VIT, "zero2", "bf16", zero=ON_HOST, text=", optimizer on the host"),
    Row("ViT", VIT, "zero2", "bf16", more={"train": "lora"}, text=", LoRA"),
    Row("ViT", VIT, "zero2", "bf16", more={"freeze_layers": 2}, text=", half frozen"),
    *(
        Row("Swin", SWIN, engine, precision)
        for engine in ("ddp", "zero1", "zero2", "zero3")
        for precision in ("fp32", "bf16")
    ),
    *(Row("Swin", SWIN, engine, "bf16", ranks=4) for engine in ("ddp", "zero3")),
    *(Row("ViT", VIT, "fsdp", precision) for precision in ("fp32", "bf16")),
    Row("ViT", VIT, "fsdp", "bf16", ranks=4),
    *(Row("Swin", SWIN, "fsdp", precision) for precision in ("fp32", "bf16")),
)


def main(engines: list[str]) -> None:
    before, _, rest = FILE.read_text(encoding="utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    old = _pairs(table)
    lines = [f"| {COLUMNS} |", f"|{' --- |' * 10}"]
    for row in ROWS:
        kept = old.get(_head(row)) if engines and row.engine not in engines else None
        lines += kept or _made(row)
        sys.stderr.write("\n".join(lines[-2:]) + "\n")
    FILE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


def _pairs(table: str) -> dict[str, list[str]]:
    """The lines of a table by the head of their row."""
    lines = table.splitlines()[2:]
    return {first.partition(" estimated |")[0]: [first, second] for first, second in zip(lines[::2], lines[1::2])}


def _head(row: Row) -> str:
    return f"| {row.name} | {row.engine}{row.text} | {row.ranks} | {row.precision} |"


def _made(row: Row) -> list[str]:
    """A line of the estimate and one of the measurement."""
    read = {"deepspeed": row.deepspeed} if row.deepspeed else {}
    played = Played(*resolved(TrainSettings.of(**row.asked, **read)), CPU.gpu)
    on_host = played.step.strategy.host().get("offload_bytes", 0)
    peak = max(summary.tensor_peak.total_bytes for summary in played.steady) + on_host
    kinds = snapshot(played.ledger, played.replay.blocks, played.steady[-1].end.event)
    fsdp = {"version": 2} if row.engine == "fsdp" else None
    ranks = measure_ranks(TrainSettings.of(**row.asked), deepspeed=row.deepspeed, fsdp=fsdp)
    found = BY_KIND.get(row.engine, _of_buffers)(ranks[0]["moments"]["rest"])
    of_both = [kinds.get(kind, 0) for kind in _KINDS], [found[kind] for kind in _KINDS]
    if on_host:  # by kind only where device and host can be told apart
        of_both = [None] * 4, [None] * 4
    highest = max(most_loaded([rank["peaks"] for rank in ranks]).values())
    return [
        f"{_head(row)} estimated | {_cells([*of_both[0], peak])} |",
        f"| | | | | measured | {_cells([*of_both[1], highest])} |",
    ]


def _of_buffers(rest: Mapping[str, Any]) -> dict[str, int]:
    """Buffers that no parameter has are for communication."""
    return {**rest["kinds"], "communication": sum(size for size, op in rest["others"] if op == _EMPTY)}


def _of_zero3(rest: Mapping[str, Any]) -> dict[str, int]:
    """Shards and gradients have no parameter: of the empty buffers the bucket is known by its size, the other holds the
    shards; zeros are the gradients."""
    empty = [size for size, op in rest["others"] if op == _EMPTY]
    buffers = [size for size in empty if size % BUCKETS["reduce_bucket_size"] == 0]
    shards = sum(empty) - sum(buffers)
    kinds = rest["kinds"]
    gradients = sum(size for size, op in rest["others"] if op == _ZEROS)
    return {
        **kinds,
        "parameters": kinds["parameters"] + shards,
        "gradients": kinds["gradients"] + gradients,
        "communication": sum(buffers),
    }


#: Where the figures of an engine's ranks are, between two steps.
BY_KIND: Mapping[str, Callable[[Mapping[str, Any]], dict[str, int]]] = {"zero3": _of_zero3}


def _cells(figures: list[int | None]) -> str:
    return " | ".join("" if figure is None else f"{figure:,}" for figure in figures)


if __name__ == "__main__":
    main(sys.argv[1:])
