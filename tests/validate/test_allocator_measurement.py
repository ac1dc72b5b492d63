"""What an allocator said, against an estimate: from values made by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest
from factories import make_estimate
from vitmem.report.comparison import comparison_report
from vitmem.report.formats import renderer
from vitmem.result import PhasePeak
from vitmem.validate.allocator_measurement import AllocatorMeasurement
from vitmem.validate.compare import compare

SEEN = {
    "allocated_bytes": 2000,
    "phases": {"forward": 1500, "backward": 2000, "optimizer_step": 1000},
    "first_step_bytes": 1200,
    "reserved_bytes": 4000,
    "num_alloc_retries": 2,
    "left_bytes": 0,
}
FAILED = {
    "message": "CUDA out of memory. Tried ...",
    "phase": "backward",
    "step": 0,
    "num_alloc_retries": 1,
    "needed_bytes": 3 * 2**20,
}


def measurement(**document):
    return AllocatorMeasurement.of(
        {"versions": {"torch": "2.14.1"}, **document}, backend="null", device="Some GPU", notes=("a note",)
    )


def estimate(allocated=2000, reserved=4000, fits=None):
    base = make_estimate()
    return dataclasses.replace(
        base,
        peak=dataclasses.replace(base.peak, allocated_bytes=allocated, reserved_bytes=reserved),
        phases={**base.phases, "forward": PhasePeak(tensor_bytes=1, allocated_bytes=1600), "optimizer_step": None},
        verdict=None if fits is None else {"gpu": "t4", "usable_bytes": 1, "fits": fits, "headroom_bytes": 0},
    )


def test_allocated_and_reserved_decide():
    assert compare(estimate(), measurement(measured=SEEN)).passed
    for allocated, reserved in ((2010, 4000), (2000, 3980)):
        comparison = compare(estimate(allocated, reserved), measurement(measured=SEEN))
        assert not comparison.passed
        assert compare(estimate(allocated, reserved), measurement(measured=SEEN), tolerance=0.01).passed
    assert comparison.to_dict()["relative_error"] == {
        "tensor_bytes": None,
        "allocated_bytes": 0,
        "reserved_bytes": -0.005,
        "device_bytes": None,
    }


def test_phases_are_compared_as_the_allocator_sees_them():
    comparison = compare(estimate(), measurement(measured=SEEN))
    rows = {row.name: (row.estimated_bytes, row.measured_bytes) for row in comparison.phases}
    assert rows["forward"] == (1600, 1500)
    assert rows["optimizer_step"] == (None, 1000)
    assert rows["first_step"][1] == 1200
    assert (comparison.kinds, comparison.states, comparison.parameters) == ((), (), ())


@pytest.mark.parametrize(("fits", "passed"), [("no", True), ("borderline", True), ("yes", False), (None, False)])
def test_running_out_has_to_be_foreseen(fits, passed):
    assert compare(estimate(fits=fits), measurement(out_of_memory=FAILED)).passed is passed


@pytest.mark.parametrize(("fits", "passed"), [("yes", True), ("borderline", True), ("no", False)])
def test_what_ran_must_not_have_been_refused(fits, passed):
    assert compare(estimate(fits=fits), measurement(measured=SEEN)).passed is passed


def test_the_document_is_the_contracts():
    document = json.loads(json.dumps(measurement(measured=SEEN).to_dict()))
    assert {"peak", "at_peak", "phases", "layers", "versions", "device"} <= set(document)
    assert document["peak"]["phase"] == "backward"
    assert document["phases"]["first_step"] == {"tensor_bytes": None, "allocated_bytes": 1200}
    assert (document["num_alloc_retries"], document["out_of_memory"]) == (2, None)
    assert measurement(out_of_memory=FAILED).to_dict()["out_of_memory"] == FAILED


def test_the_report_shows_both_sides_retries_and_notes():
    text = renderer(".txt")(comparison_report(compare(estimate(), measurement(measured=SEEN)).to_dict()))
    assert text.startswith("Passed: the estimate equals the null backend to the byte.")
    assert "Largest moment of each phase (allocated)" in text
    assert "freed its cache and tried again 2 times" in text
    assert "a note" in text
    assert "What the peak is made of" not in text


def test_the_report_of_running_out_says_where_and_repeats_the_allocator():
    text = renderer(".txt")(
        comparison_report(compare(estimate(fits="no"), measurement(out_of_memory=FAILED)).to_dict())
    )
    assert text.startswith("Passed: out of memory on the null backend in backward of step 1, as estimated:")
    assert "needed at least 3.0 MiB, the estimate said" in text.replace("\n", " ")
    assert FAILED["message"] in text
    unforeseen = compare(estimate(fits="yes"), measurement(out_of_memory={**FAILED, "step": None, "phase": "setup"}))
    text = renderer(".txt")(comparison_report(unforeseen.to_dict()))
    assert text.startswith("FAILED: out of memory on the null backend in setup, though the estimate fits")
