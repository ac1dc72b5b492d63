"""``solve``: the answer is the last candidate that fits, as trying them one by one shows."""

from __future__ import annotations

import json

import pytest
import vitmem
from vitmem import DoesNotFit, InvalidRequest, TrainSettings
from vitmem.candidate import Candidate
from vitmem.cli import main
from vitmem.solver import TARGETS

SMALL = {"model": "test_vit", "precision": "fp32"}


def fits(**settings):
    return vitmem.estimate(**settings).verdict["fits"] == "yes"


@pytest.mark.parametrize("asked", [1, 8, 300])
@pytest.mark.parametrize("memory", ["1GiB", "1000MiB"])
def test_the_largest_batch_is_the_one_that_a_search_by_hand_finds(memory, asked):
    solution = vitmem.solve("bs", **SMALL, memory=memory, bs=asked)
    bs = solution.value
    assert fits(**SMALL, memory=memory, bs=bs)
    assert not fits(**SMALL, memory=memory, bs=bs + 1)
    assert (solution.estimate.request["bs"], solution.next.request["bs"]) == (bs, bs + 1)
    by_hand = next(tried for tried in range(1, 10_000) if not fits(**SMALL, memory=memory, bs=tried)) - 1
    assert bs == by_hand


def test_the_largest_resolution_is_a_size_without_remainder_in_the_same_proportion():
    solution = vitmem.solve("res", "vit_tiny_patch16_224", bs=16, memory="4GiB", precision="bf16")
    side = solution.value[0]
    assert solution.value == (side, side)
    assert side % 16 == 0
    assert solution.next.request["res"] == [side + 16, side + 16]
    wide = vitmem.solve("res", "vit_tiny_patch16_224", res="64x128", bs=16, memory="4GiB").value
    assert wide[1] == 2 * wide[0]


def test_sizes_that_the_library_refuses_are_passed_over():
    model = "microsoft/swin-tiny-patch4-window7-224"
    with pytest.raises(InvalidRequest):
        vitmem.estimate(model, res=192, bs=8)
    solution = vitmem.solve("res", model, bs=8, memory="1900MiB")
    assert (solution.value, solution.next.request["res"]) == ((224, 224), [256, 256])
    with pytest.raises(DoesNotFit, match="res 224x224 does not fit"):
        vitmem.solve("res", model, bs=8, memory="1500MiB")


def test_the_smallest_gpu_holds_it_and_no_smaller_one_does():
    from vitmem.gpus import load

    solution = vitmem.solve("gpu", "vit_base_patch16_224", bs=180)
    answer = load()[solution.value]
    smaller = [row.name for row in load().values() if row.memory_bytes < answer.memory_bytes]
    assert smaller
    assert not any(fits(model="vit_base_patch16_224", bs=180, gpu=name) for name in smaller)
    assert answer.capability >= (7, 5)


@pytest.mark.parametrize(
    ("what", "settings", "error", "words"),
    [
        ("bs", {}, InvalidRequest, "add --gpu rtx4090 or --memory 24GiB"),
        ("batch", {"gpu": "t4"}, InvalidRequest, "there is bs, res, gpu"),
        ("gpu", {"gpu": "t4"}, InvalidRequest, "leave out --gpu"),
        ("bs", {"model": "vit_giant_patch14_224", "gpu": "t4"}, DoesNotFit, "bs 1 does not fit t4"),
        ("gpu", {"model": "vit_giant_patch14_224", "bs": 100_000}, DoesNotFit, "bs 100000 does not fit"),
        ("res", {"model": "vit_giant_patch14_224", "gpu": "t4"}, DoesNotFit, "res 14x14 does not fit t4"),
    ],
)
def test_what_has_no_answer_is_said(what, settings, error, words):
    with pytest.raises(error, match=words):
        vitmem.solve(what, **settings)


def test_solving_twice_works():
    assert set(TARGETS) == {"bs", "res", "gpu"}
    first, second = (vitmem.solve("bs", **SMALL, memory="1GiB") for _ in range(2))
    assert first == second


def test_the_json_of_the_command_is_the_contracts(capsys):
    assert main(("solve", "bs", "test_vit", "--memory", "1GiB", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"schema_version", "vitmem_version", "what", "value", "estimate", "next"}
    assert document["estimate"]["request"]["bs"] == document["value"] == document["next"]["request"]["bs"] - 1
    assert main(("solve", "bs", "vit_giant_patch14_224", "--gpu", "t4")) == 3
    assert "does not fit" in capsys.readouterr().err


def test_settings_are_not_changed():
    settings = TrainSettings.of("test_vit", memory="1GiB", bs=2)
    assert vitmem.solve("bs", "test_vit", memory="1GiB", bs=2).estimate.request["model"] == settings.model


@pytest.mark.parametrize("memory", ["700MiB", "975MiB", "1000MiB", "24GiB"])
@pytest.mark.parametrize("settings", [{"bs": 64}, {"bs": 64, "loop": "timm"}, {"bs": 64, "eval_bs": 256}], ids=str)
def test_whether_it_fits_is_what_the_estimate_says(settings, memory):
    asked = {"model": "test_vit", "res": 224, "memory": memory, **settings}
    assert Candidate(TrainSettings.of(**asked)).fits == fits(**asked)


def test_the_end_of_the_search_is_no_answer(capsys):
    assert main(("solve", "bs", "test_vit", "--memory", "100000TiB")) == 0
    assert "nothing larger was tried" in capsys.readouterr().out


def test_an_evaluation_that_does_not_fit_is_named(capsys):
    assert main(("solve", "bs", "test_vit", "--gpu", "t4", "--eval-bs", "10000000")) == 3
    assert "--eval-bs" in capsys.readouterr().err


def test_sizes_beyond_any_machine_are_refused(capsys):
    assert main(("estimate", "test_vit", "--num-classes", "100000000000000000000")) == 2
    assert "128 PiB" in capsys.readouterr().err
