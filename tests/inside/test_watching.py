"""``watching`` around a plain loop on the CPU, and ``describe`` of a live timm model."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
import vitmem  # noqa: E402
from vitmem.errors import InvalidRequest, NotModelled  # noqa: E402
from vitmem.validate import MemoryWarning, watching  # noqa: E402
from vitmem.validate.inside.watching import describe  # noqa: E402

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}


def tiny() -> Any:
    return timm.create_model("vit_tiny_patch16_224", **SIZES)


def steps(model: Any, optimizer: Any, kept: list[Any] | None = None, *, count: int = 14, fails: bool = False) -> None:
    for _ in range(count):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.arange(4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if kept is not None:
            kept.append(loss)
            kept.append(torch.zeros(250))
        if fails:
            raise ValueError("planted")


@pytest.fixture
def loop() -> tuple[Any, Any]:
    model = tiny()
    return model, torch.optim.AdamW(model.parameters())


def test_a_clean_loop_has_peaks_and_no_leak(loop: tuple[Any, Any]) -> None:
    model, optimizer = loop
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with watching(model, optimizer, layers=True) as seen:
            steps(model, optimizer)
            with torch.no_grad():
                model.eval()(torch.randn(64, 3, 32, 32))
    report = seen.report
    assert (report.num_steps, report.leak, report.comparison) == (14, None, None)
    assert {"forward", "backward", "optimizer_step", "between_steps"} <= set(report.phases)
    assert len(set(report.steps[2:])) == 1
    assert report.peak_bytes == max(report.phases.values())
    assert {"blocks.0", "blocks.1", "patch_embed"} <= set(report.layers)
    assert report.bottlenecks[0].startswith("blocks.")
    assert report.to_dict()["steps"] == list(report.steps)
    torch.zeros(10)
    assert seen.report.peak_bytes == report.peak_bytes


def test_a_list_that_keeps_tensors_is_a_leak(loop: tuple[Any, Any]) -> None:
    model, optimizer = loop
    with pytest.warns(MemoryWarning, match="memory grows by"), watching(model, optimizer) as seen:
        steps(model, optimizer, kept=[])
    assert seen.report.leak is not None
    assert seen.report.leak.bytes_per_step == 4 + 1000


def test_everything_is_put_back_after_an_exception(loop: tuple[Any, Any]) -> None:
    model, optimizer = loop
    with pytest.raises(ValueError, match="planted"), watching(model, optimizer, layers=True) as seen:
        steps(model, optimizer, fails=True)
    before = seen.report
    steps(model, optimizer, count=2)
    assert seen.report == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_estimate_is_made_from_the_live_model(loop: tuple[Any, Any]) -> None:
    model, optimizer = loop
    estimate = describe(model, optimizer, bs=4, precision="fp32")
    sizes = {"res": 32, "patch": 8, "dim": 32, "depth": 2, "heads": 2, "num_classes": 5}
    expected = vitmem.estimate("vit_tiny_patch16_224", bs=4, precision="fp32", loop="plain", **sizes)
    assert estimate.peak == expected.peak
    assert estimate.request["optim"] == "adamw_torch"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryWarning)
        with watching(model, optimizer, bs=4, precision="fp32") as seen:
            steps(model, optimizer, count=3)
    assert seen.report.comparison is not None
    assert seen.report.comparison.estimated_bytes == expected.peak.tensor_bytes


def test_an_estimate_or_settings_for_one(loop: tuple[Any, Any]) -> None:
    model, optimizer = loop
    estimate = describe(model, optimizer, bs=4, precision="fp32")
    with pytest.raises(InvalidRequest, match="give one of them"), watching(model, optimizer, estimate=estimate, bs=4):
        pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad=True"),
        (lambda p: torch.optim.AdamW(p, foreach=False), "single tensor implementation"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), "weight decay"),
        (torch.optim.LBFGS, "LBFGS"),
        (lambda p: torch.optim.AdamW(p[1:]), "parameters of the model are trained|of the model are trained"),
    ],
)
def test_an_optimizer_that_is_not_modelled_gets_no_number(make: Any, reason: str) -> None:
    model = tiny()
    with pytest.raises(NotModelled, match=reason):
        describe(model, make(list(model.parameters())), bs=4, precision="fp32")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "sgd"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "sgd-momentum"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "sgd-nesterov"),
        (torch.optim.Adam, "adam"),
        (torch.optim.RMSprop, "rmsprop"),
        (lambda p: torch.optim.AdamW(p, fused=True), "adamw_torch_fused"),
    ],
)
def test_an_optimizer_has_its_name(make: Any, name: str) -> None:
    model = tiny()
    estimate = describe(model, make(list(model.parameters())), bs=4, precision="fp32")
    assert estimate.request["optim"] == name


def test_a_model_of_ones_own_gets_no_number() -> None:
    model = torch.nn.Linear(3, 3)
    with pytest.raises(NotModelled, match="Linear is no model of transformers or timm"):
        describe(model, torch.optim.AdamW(model.parameters()), bs=4)


def test_a_convolutional_network_is_rehearsed_and_says_so() -> None:
    model = timm.create_model("resnet10t", num_classes=5)
    estimate = describe(model, torch.optim.AdamW(model.parameters()), bs=2, precision="fp32")
    assert estimate.peak.allocated_bytes is None
    assert "rehearsed" in estimate.warnings[0]


def test_importing_the_package_imports_no_library() -> None:
    code = (
        "import sys, vitmem.validate; assert 'MemoryCallback' in vitmem.validate.__all__;"
        "print({'torch', 'transformers', 'pynvml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    import vitmem.validate

    with pytest.raises(AttributeError, match="no attribute 'Callback'"):
        _ = vitmem.validate.Callback  # type: ignore[attr-defined]
