"""Whether it fits: the allocator replayed within what a GPU's context leaves."""

from __future__ import annotations

import json

import pytest
import vitmem
from vitmem.allocator import AllocatorConfig
from vitmem.cli import main
from vitmem.device import Device, Run, device_of, verdict
from vitmem.errors import InvalidRequest, NotModelled, UnknownName
from vitmem.gpus import Context, find
from vitmem.kernels import Gpu
from vitmem.ledger import Ledger
from vitmem.replay import replay
from vitmem.settings import TrainSettings

MIB = 2**20
SMALL = {"model": "vit_tiny_patch16_224", "depth": 2, "bs": 4}


def ledger(*events):
    """Three allocations of 30, 50 and 25 MiB; the events are theirs."""
    return Ledger(
        bytes=(30 * MIB, 50 * MIB, 25 * MIB),
        kinds=("activations",) * 3,
        layers=("a",) * 3,
        events=events,
        phases=(("forward", 0),),
        steps=(0,),
    )


def training(made):
    return Run(made, (("training", len(made.events)),), AllocatorConfig())


def device(total_mib, low=10, expected=20, high=30):
    context = Context(low_bytes=low * MIB, expected_bytes=expected * MIB, high_bytes=high * MIB)
    return Device(name="a", gpu=Gpu(), total_bytes=total_mib * MIB, context=context, allocator=AllocatorConfig())


@pytest.mark.parametrize(
    ("total_mib", "fits", "headroom_mib"),
    [(120, "yes", 20), (110, "yes", 10), (109, "borderline", 9), (90, "borderline", -10), (89, "no", -11)],
)
def test_the_verdict_follows_what_the_context_may_take(total_mib, fits, headroom_mib):
    # GIVEN 30 + 50 MiB at once, and a context of 10 to 30 MiB
    run = ledger(0, 1)
    document, reserved = verdict(device(total_mib), [training(run)])
    assert (document["fits"], reserved) == (fits, 80 * MIB)
    assert document["headroom_bytes"] == headroom_mib * MIB
    assert document["usable_bytes"] == (total_mib - 20) * MIB


def test_cached_memory_is_given_back_before_it_runs_out():
    # GIVEN 30 MiB that are freed before 50 MiB are asked for: 80 MiB cached, 50 needed
    run = ledger(0, ~0, 1)
    assert replay(run).reserved_bytes == 80 * MIB
    document, reserved = verdict(device(90), [training(run)])
    assert (document["fits"], document["num_alloc_retries"], reserved) == ("yes", 1, 50 * MIB)


def test_the_worst_part_of_the_worst_run_decides():
    # GIVEN a training of 30 MiB, an evaluation of 56, a resumed run of 50, and a context of 10 to 30 MiB
    course = Run(ledger(0, 2, ~0, ~2), (("training", 1), ("evaluation", 4)), AllocatorConfig())
    resumed = Run(ledger(1, ~1), (("resume", 2),), AllocatorConfig())
    found = [verdict(device(total), [course, resumed]) for total in (90, 80, 64)]
    assert [(document["fits"], document["phase"]) for document, _ in found] == [
        ("yes", "evaluation"),
        ("borderline", "evaluation"),
        ("no", "evaluation"),
    ]
    assert [document["headroom_bytes"] for document, _ in found] == [14 * MIB, 4 * MIB, -12 * MIB]
    assert {reserved for _, reserved in found} == {30 * MIB}  # training alone
    # AND a resumed run that is larger than the evaluation
    document, reserved = verdict(device(90), [course, Run(ledger(1, 2), (("resume", 2),), AllocatorConfig())])
    assert (document["fits"], document["phase"], reserved) == ("borderline", "resume", 30 * MIB)


def test_without_a_device_there_is_no_verdict():
    estimate = vitmem.estimate(**SMALL)
    assert estimate.verdict is None
    assert estimate.peak.device_bytes is None
    assert estimate.peak.reserved_bytes >= estimate.peak.allocated_bytes


def test_a_named_gpu_decides_kernels_memory_and_context():
    a100, t4 = (vitmem.estimate(**SMALL, precision="fp16", gpu=gpu) for gpu in ("a100-40g", "t4"))
    assert (a100.request["sdpa_kernel"], t4.request["sdpa_kernel"]) == ("flash", "efficient")
    assert vitmem.estimate(**SMALL, precision="fp16", gpu="h200").request["sdpa_kernel"] == "cudnn"
    peak = t4.peak
    assert peak.reserved_bytes < peak.device_low_bytes < peak.device_bytes < peak.device_high_bytes
    assert t4.verdict["usable_bytes"] == find("t4").memory_bytes - (peak.device_bytes - peak.reserved_bytes)
    assert "compute capability 7.5" in " ".join(t4.assumptions)


def test_a_memory_may_be_named_alone_or_make_a_gpu_smaller():
    alone = vitmem.estimate(**SMALL, memory="24GiB")
    assert (alone.verdict["gpu"], alone.verdict["fits"]) == ("24GiB", "yes")
    half = device_of(TrainSettings.of(gpu="a100-40g", memory="20GiB"))
    assert (half.total_bytes, half.gpu.num_sms) == (20 * 1024 * MIB, 108)
    with pytest.raises(InvalidRequest, match="more than a t4 has"):
        device_of(TrainSettings.of(gpu="t4", memory="24GiB"))


def test_what_does_not_fit_is_exit_3_and_says_by_how_much(capsys):
    assert main(["estimate", "vit_large_patch16_384", "--bs", "64", "--gpu", "rtx3090"]) == 3
    assert "Does not fit rtx3090: " in capsys.readouterr().out
    assert main(["estimate", "vit_tiny_patch16_224", "--bs", "1", "--gpu", "rtx3090", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["fits"] == "yes"
    assert document["peak"]["device_bytes"] > document["peak"]["reserved_bytes"]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"gpu": "rtx3091"}, UnknownName),
        ({"memory": "24"}, InvalidRequest),
        ({"alloc_conf": "expandable_segments"}, InvalidRequest),
        ({"alloc_conf": "max_split_size_mb:20"}, InvalidRequest),
        ({"alloc_conf": "garbage_collection_threshold:0.8"}, NotModelled),
        ({"alloc_conf": "backend:cudaMallocAsync"}, NotModelled),
    ],
)
def test_what_is_no_device_is_one_clear_line(settings, error):
    with pytest.raises(error) as caught:
        vitmem.estimate(**SMALL, **settings)
    assert "\n" not in str(caught.value)


def test_expandable_segments_change_what_is_reserved_and_nothing_else():
    larger = {**SMALL, "bs": 33}
    usual, expandable = vitmem.estimate(**larger), vitmem.estimate(**larger, alloc_conf="expandable_segments:True")
    assert expandable.peak.tensor_bytes == usual.peak.tensor_bytes
    assert expandable.peak.reserved_bytes != usual.peak.reserved_bytes
    assert expandable.at_peak["rounding"] <= usual.at_peak["rounding"]  # whole blocks are split
    parsed = AllocatorConfig.parse("expandable_segments:True, max_split_size_mb:128")
    assert (parsed.expandable_segments, parsed.max_split_size) == (True, 128 * MIB)


def test_what_an_old_gpu_lacks_is_a_warning():
    small = {**SMALL, "eval_bs": 4}
    (emulated,) = vitmem.estimate(**small, precision="bf16", gpu="t4").warnings
    assert "no bf16" in emulated
    assert vitmem.estimate(**small, precision="fp16", gpu="t4").warnings == ()
    assert "do not run" in vitmem.estimate(**small, precision="fp16", gpu="v100-16g").warnings[0]
