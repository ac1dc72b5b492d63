"""Make the table of ``docs/many-gpus.md``: what each engine holds, estimated and measured between real processes.

    python scripts/make_many_gpus.py

Needs ``vitmem[deepspeed]``, and some minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import TrainSettings
from vitmem.timeline import snapshot
from vitmem.validate.distributed.launch import measure_ranks

FILE = Path(__file__).resolve().parent.parent / "docs" / "many-gpus.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
COLUMNS = "model | engine | precision | | parameters | gradients | optimizer | communication | peak"

VIT = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 4, "res": "32"}
SWIN = {"model": "microsoft/swin-tiny-patch4-window7-224", "dim": 24, "res": "112", "window": 3}
OF_BOTH = {"bs": 2, "gpus": 2}
DOCUMENT = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
}
BUCKETS = {"reduce_bucket_size": 1_000_000}
ON_HOST = {"device": "cpu", "pin_memory": False}
ENGINES = ("ddp", "zero1", "zero2", "zero3")
#: What an engine makes its buffers with.
_EMPTY = "aten.empty.memory_format"
_KINDS = ("parameters", "gradients", "optimizer_state", "communication")


def main() -> None:
    rows = [f"| {COLUMNS} |", f"|{' --- |' * 9}"]
    for name, model, engines, precisions in (
        ("ViT", VIT, ENGINES, ("fp32", "bf16")),
        ("Swin", SWIN, ("ddp",), ("bf16",)),
    ):
        for engine in engines:
            for precision in precisions:
                rows += rows_of(name, {**model, **OF_BOTH, "parallel": engine, "precision": precision})
    rows += rows_of("ViT", {**VIT, **OF_BOTH, "parallel": "zero2", "precision": "bf16"}, offload=True)
    before, _, rest = FILE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    FILE.write_text(before + BEGIN + "\n".join(rows) + "\n" + END + after, encoding="utf-8")


def rows_of(name: str, asked: Mapping[str, Any], *, offload: bool = False) -> list[str]:
    """One row of the estimate and one of the measurement."""
    stage = asked["parallel"].removeprefix("zero")
    deepspeed = None
    if stage.isdigit():
        zero = {"stage": int(stage), **BUCKETS, **({"offload_optimizer": ON_HOST} if offload else {})}
        deepspeed = {**DOCUMENT, "zero_optimization": zero}
    played = Played(*resolved(TrainSettings.of(**asked, **({"deepspeed": deepspeed} if deepspeed else {}))))
    on_host = played.step.strategy.host().get("offload_bytes", 0)
    peak = max(summary.tensor_peak.total_bytes for summary in played.steady) + on_host
    kinds = snapshot(played.ledger, played.replay.blocks, played.steady[-1].end.event)
    figures = [*(kinds.get(kind, 0) for kind in _KINDS), peak]
    head = f"| {name} | {asked['parallel']}{', optimizer on the host' if offload else ''} | {asked['precision']} |"
    found = measured(asked, deepspeed)
    if offload:  # by kind only where device and host can be told apart
        figures[:4] = found[:4] = [None] * 4
    return [f"{head} estimated | {cells(figures)} |", f"| | | | measured | {cells(found)} |"]


def measured(asked: Mapping[str, Any], deepspeed: Mapping[str, Any] | None) -> list[int | None]:
    """The same figures of the most loaded rank; ZeRO-3's shards and gradients are buffers without a parameter."""
    ranks = measure_ranks(TrainSettings.of(**asked), deepspeed=deepspeed)
    rest = ranks[0]["moments"]["rest"]
    found = dict(rest["kinds"])
    buffers = [size for size, op in rest["others"] if op == _EMPTY]
    if asked["parallel"] == "zero3":
        shards, *buffers = sorted(buffers, reverse=True)
        found["parameters"] += shards
        found["gradients"] += sum(size for size, op in rest["others"] if op == "aten.zeros.default")
    found["communication"] = sum(buffers)
    return [*(found[kind] for kind in _KINDS), max(max(rank["peaks"].values()) for rank in ranks)]


def cells(figures: list[int | None]) -> str:
    return " | ".join("" if figure is None else f"{figure:,}" for figure in figures)


if __name__ == "__main__":
    main()
