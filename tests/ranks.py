"""What the tests of several GPUs share: an estimate by the CPU's rules beside real ranks, and their figures."""

from __future__ import annotations

from vitmem.device import CPU
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import TrainSettings
from vitmem.timeline import snapshot
from vitmem.validate.distributed.backend import most_loaded
from vitmem.validate.distributed.launch import measure_ranks

VIT = {"model": "google/vit-base-patch16-224", "dim": 192, "heads": 3, "depth": 4, "res": "32", "bs": 2, "gpus": 2}
SWIN = {"model": "microsoft/swin-tiny-patch4-window7-224", "dim": 24, "res": "112", "window": 3, "bs": 2, "gpus": 2}

KINDS = ("parameters", "buffers", "gradients", "optimizer_state", "communication")
#: What engines make buffers with, and an EMA its copies; batches come from others.
_BUFFERS = ("aten.zeros.default", "aten.empty.memory_format", "aten.full.default", "aten.clone.default")


def played_on_cpu(settings):
    return Played(*resolved(settings), CPU.gpu)


def peaks_of(played):
    """Of each phase of a steady step."""
    peaks = {}
    for summary in played.steady:
        peaks[summary.name] = max(peaks.get(summary.name, 0), summary.tensor_peak.total_bytes)
    return peaks


def at_rest(played):
    """Bytes by kind at the end of a step."""
    return snapshot(played.ledger, played.replay.blocks, played.steady[-1].end.event)


def states(rank):
    """Of a measured rank between two steps: all but batches and scalars."""
    rest = rank["moments"]["rest"]
    return sum(rest["kinds"].values()) + sum(size for size, op in rest["others"] if op in _BUFFERS)


def highest(ranks):
    """The peaks of the most loaded rank."""
    return most_loaded([rank["peaks"] for rank in ranks])


def both(asked, deepspeed=None):
    """The estimate's play and the measured ranks."""
    offload = asked.get("offload", "none")
    read = {"deepspeed": deepspeed} if deepspeed else {}
    run = {name: value for name, value in asked.items() if name != "offload"}
    assert offload == "none" or deepspeed
    return played_on_cpu(TrainSettings.of(**asked, **read)), measure_ranks(TrainSettings.of(**run), deepspeed=deepspeed)
