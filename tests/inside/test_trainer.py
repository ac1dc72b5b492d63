"""MemoryCallback in a real Trainer on the CPU: a tiny ViT, generated images, two epochs."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tiny_trainer import BATCH, NUM_IMAGES, make_trainer  # noqa: E402
from vitmem.errors import NotModelled  # noqa: E402
from vitmem.validate import MemoryCallback, MemoryWarning, estimate_of, preflight  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet")


def logged(trainer: Any, key: str) -> list[Any]:
    return [row[key] for row in trainer.state.log_history if key in row]


def test_a_clean_run_is_followed_epoch_by_epoch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    estimate = preflight(trainer)
    callback = MemoryCallback(trainer, layers=True)
    trainer.add_callback(callback)
    trainer.train()
    report = callback.report
    assert report.num_steps == 2 * NUM_IMAGES // BATCH
    assert report.leak is None
    assert set(report.phases) == {"between_steps", "forward", "backward", "optimizer_step", "evaluation", "save"}
    assert len(report.epochs) == 2
    assert logged(trainer, "vitmem/growth_bytes_per_step") == [0, 0]
    assert logged(trainer, "vitmem/evaluation_peak_bytes") == [epoch["evaluation"] for epoch in report.epochs]
    assert logged(trainer, "vitmem/epoch_peak_bytes") == [max(epoch.values()) for epoch in report.epochs]
    assert logged(trainer, "vitmem/forward_peak_bytes") == [epoch["forward"] for epoch in report.epochs]
    assert logged(trainer, f"vitmem/layers/{report.bottlenecks[0]}_bytes")[-1] == report.layers[report.bottlenecks[0]]
    assert len({name for row in trainer.state.log_history for name in row if name.startswith("vitmem/layers/")}) == 3
    assert estimate is not None
    states = estimate.states
    held = states.parameter_bytes + states.optimizer_bytes
    assert held < report.phases["save"] < report.phases["forward"] <= report.phases["backward"]
    assert report.bottlenecks[0].startswith("vit.")


def test_what_is_left_after_a_step_is_what_the_estimate_keeps(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=1, eval_strategy="no", save_strategy="no")
    estimate = preflight(trainer)
    callback = MemoryCallback(trainer, estimate=estimate)
    trainer.add_callback(callback)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryWarning)
        trainer.train()
    report = callback.report
    assert report.comparison is not None
    assert (report.figure, report.comparison.figure) == ("tensors", "of live tensors")
    images, labels = BATCH * 3 * 32 * 32 * 4, BATCH * 8
    assert estimate is not None
    states = estimate.states
    kept = states.parameter_bytes + states.buffer_bytes + states.optimizer_bytes + images + labels
    steps = 4 * len(list(trainer.model.parameters()))  # AdamW counts on the host, which is where this runs
    scalars = 4 * 4  # losses and the norm
    assert report.end_of_step_bytes == kept + steps + scalars


class Keeping(transformers.Trainer):  # type: ignore[misc]
    """The planted leak: a list that keeps outputs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: list[Any] = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        self.kept.append(outputs.logits.detach().clone().expand(40, -1, -1).contiguous())
        return (loss, outputs) if return_outputs else loss


def test_a_planted_leak_is_reported_with_its_bytes(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, kind=Keeping, num_train_epochs=2, eval_strategy="no", save_strategy="no")
    callback = MemoryCallback(trainer)
    trainer.add_callback(callback)
    with pytest.warns(MemoryWarning, match=r"memory grows by 3\.1 KiB per step, from step 4 to"):
        trainer.train()
    assert callback.report.leak is not None
    assert callback.report.leak.bytes_per_step == 40 * BATCH * 5 * 4
    assert logged(trainer, "vitmem/growth_bytes_per_step")[-1] == 40 * BATCH * 5 * 4
    with pytest.raises(NotModelled, match="own compute_loss"):
        estimate_of(trainer)


def test_without_the_trainer_the_figures_go_into_its_logs(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callbacks=[MemoryCallback()], eval_strategy="no", save_strategy="no")
    trainer.train()
    assert len(logged(trainer, "vitmem/epoch_peak_bytes")) == 2


def test_a_used_up_headroom_is_warned_of_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=1, eval_strategy="no", save_strategy="no")
    estimate = preflight(trainer, memory="24GiB")
    assert estimate is not None
    tight = {**estimate.verdict, "usable_bytes": estimate.peak.tensor_bytes // 2 + 1000}  # type: ignore[dict-item]
    half = dataclasses.replace(estimate.peak, tensor_bytes=estimate.peak.tensor_bytes // 2)
    trainer.add_callback(MemoryCallback(trainer, estimate=dataclasses.replace(estimate, peak=half, verdict=tight)))
    with pytest.warns(MemoryWarning, match="headroom is used up") as seen:
        trainer.train()
    assert len([one for one in seen if one.category is MemoryWarning]) == 1
