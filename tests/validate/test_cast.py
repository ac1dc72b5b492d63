"""What an engine's cast of the model to 16 bits does to gradients, beside what autocast does: docs/recommend.md."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")


def gradients(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], how: str) -> torch.Tensor:
    model = copy.deepcopy(model)
    if how == "cast":
        model = model.to(torch.bfloat16)
    for images, labels in batches:
        inputs = images.to(torch.bfloat16) if how == "cast" else images
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        (loss / len(batches)).backward()
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
def test_a_cast_model_rounds_its_gradients_more_than_autocast_does() -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224")
    batches = [(torch.randn(2, 3, 224, 224), torch.randint(0, 1000, (2,))) for _ in range(4)]
    exact, autocast, cast = (gradients(model, batches, how) for how in ("fp32", "autocast", "cast"))
    off = [float((found - exact).norm() / exact.norm()) for found in (autocast, cast)]
    assert 0.005 < off[0] < 0.012
    assert 1.4 < off[1] / off[0] < 2
