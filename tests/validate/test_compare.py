"""A comparison by peak, kind, phase and layer, from values made by hand."""

from __future__ import annotations

import dataclasses
import json

import pytest
from factories import make_estimate
from vitmem.result import Layer, Peak, PhasePeak, States
from vitmem.validate.compare import Difference, compare
from vitmem.validate.measurement import MeasuredLayer, MeasuredStates, Measurement

STATES = {
    "parameter_bytes": 400,
    "buffer_bytes": 0,
    "gradient_bytes": 400,
    "optimizer_bytes": 800,
    "saved_activation_bytes": 300,
}


def estimate(tensor_bytes=2000, saved=300):
    peak = {"tensor_bytes": tensor_bytes, "allocated_bytes": 2600, "reserved_bytes": None, "device_bytes": None}
    bounds = {"device_low_bytes": None, "device_high_bytes": None}
    at = {"phase": "backward", "layer": "blocks.0"}
    kinds = {"parameters": 400, "activations": 1600, "workspaces": 500, "rounding": 100}
    return make_estimate(
        peak=Peak(**peak, **bounds, **at, **{f"allocated_{k}": v for k, v in at.items()}),
        at_peak=kinds,
        at_tensor_peak={**kinds, "workspaces": 0, "rounding": 0},
        phases={"forward": PhasePeak(tensor_bytes=1900, allocated_bytes=2500), "evaluation": None},
        states=States(**{**STATES, "saved_activation_bytes": saved}),
        layers=(Layer(name="blocks.0", parameter_bytes=400, saved_activation_bytes=saved, peak_temporary_bytes=0),),
    )


def measurement():
    ends = {"end_of_forward_bytes": 1900, "end_of_backward_bytes": 1700, "end_of_step_bytes": 1300}
    return Measurement(
        backend="meta",
        peak_bytes=2000,
        peak_phase="backward",
        peak_layer="blocks.0",
        at_peak={"parameters": 400, "activations": 1600},
        phases={"forward": 1900, "backward": 2000},
        states=MeasuredStates(**STATES, autocast_weight_bytes=0, **ends),
        layers=(MeasuredLayer(name="blocks.0", parameter_bytes=400, saved_activation_bytes=300),),
        num_parameters=100,
        num_trainable_parameters=100,
        versions={"torch": "2.14.1"},
        device="meta",
    )


def test_equal_sides_pass_at_any_tolerance():
    assert compare(estimate(), measurement(), tolerance=0.0).passed


def test_only_measured_peaks_decide():
    comparison = compare(estimate(tensor_bytes=2003), measurement())
    assert comparison.to_dict()["relative_error"] == {
        "tensor_bytes": 0.0015,
        "allocated_bytes": None,
        "reserved_bytes": None,
        "device_bytes": None,
    }
    assert not comparison.passed
    assert compare(estimate(tensor_bytes=2003), measurement(), tolerance=0.002).passed


def test_workspaces_and_rounding_are_compared_only_where_there_is_an_allocator():
    names = [row.name for row in compare(estimate(), measurement()).kinds]
    assert names == ["parameters", "activations"]
    allocated = dataclasses.replace(measurement(), allocated_bytes=2600)
    assert "rounding" in [row.name for row in compare(estimate(), allocated).kinds]


def test_layers_say_where_an_error_comes_from():
    (row,) = compare(estimate(saved=330), measurement()).saved_activations
    assert (row.name, row.estimated_bytes, row.measured_bytes) == ("blocks.0", 330, 300)
    assert row.relative_error == pytest.approx(0.1)


def test_a_phase_that_is_not_estimated_has_no_error():
    backward = next(row for row in compare(estimate(), measurement()).phases if row.name == "backward")
    assert backward.relative_error is None


def test_something_against_nothing_is_infinitely_wrong_but_valid_json():
    row = Difference(name="buffers", estimated_bytes=1, measured_bytes=0)
    assert row.relative_error == float("inf")
    assert json.loads(json.dumps(row.to_dict()))["relative_error"] is None


def test_a_measurement_survives_json():
    document = json.loads(json.dumps(measurement().to_dict()))
    assert Measurement.from_dict(document) == measurement()


def test_the_document_is_the_contracts():
    document = compare(estimate(), measurement()).to_dict()
    keys = {"schema_version", "backend", "estimate", "measurement", "relative_error", "tolerance", "passed"}
    assert keys <= set(document)
    assert {"peak", "at_peak", "phases", "layers", "versions", "device"} <= set(document["measurement"])


def test_a_tolerance_is_a_fraction():
    with pytest.raises(ValueError, match="fraction"):
        compare(estimate(), measurement(), tolerance=5)


@pytest.mark.parametrize(("measured", "passed"), [(3000, True), (3400, True), (2900, False), (3500, False)])
def test_what_the_device_shows_has_a_range(measured, passed):
    peak = dataclasses.replace(
        estimate().peak, device_bytes=3200, device_low_bytes=2950, device_high_bytes=3450, tensor_bytes=2000
    )
    on_device = dataclasses.replace(measurement(), device_bytes=measured)
    assert compare(dataclasses.replace(estimate(), peak=peak), on_device).passed is passed
