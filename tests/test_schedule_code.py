"""The code that ``schedule --callback`` prints: pasted, it trains through phases of different batches."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from vitmem.advice.phases import callback_text
from vitmem.advice.schedule import Phase, Schedule
from vitmem.errors import NotModelled
from vitmem.pipeline import resolved
from vitmem.settings import TrainSettings

CONFIG = {"patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 5}
#: The last two checkpoint all blocks, and the first one.
PHASES = (
    (32, 8, 1, {}),
    (48, 4, 2, {"grad_checkpointing": True}),
    (64, 2, 4, {"grad_checkpointing": True, "checkpoint_layers": 1}),
)


def by_hand(*batches: tuple[int, int, int, dict[str, Any]], **settings: Any) -> Schedule:
    """Phases of (pixels, micro-batch, accumulation, settings of its own), one epoch each."""
    asked = resolved(TrainSettings.of(**{"model": "test_vit", "memory": "1GiB", **settings}))[1].to_dict()
    phases = [
        Phase(
            res=(size, size),
            first_epoch=place,
            num_epochs=1,
            bs=bs,
            accum=accum,
            settings={**asked, **own},
            reserved_bytes=0,
            headroom_bytes=0,
            relative_epoch_time=1.0,
        )
        for place, (size, bs, accum, own) in enumerate(batches)
    ]
    return Schedule(effective_batch=8, gpu="1GiB", phases=tuple(phases), relative_time=1.0)


def test_no_code_is_printed_for_what_it_cannot_carry() -> None:
    with pytest.raises(NotModelled, match="in shards"):
        callback_text(by_hand((32, 8, 1, {}), gpus=2, parallel="zero2", precision="bf16"))
    with pytest.raises(NotModelled, match="is for the Trainer"):
        callback_text(by_hand((32, 8, 1, {}), loop="timm"))


class Watch:
    """What each phase begins and ends with, and what every update saw."""

    def __init__(self) -> None:
        self.built: list[Any] = []
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.updates: list[tuple[Any, ...]] = []
        self.checkpointed: list[list[bool]] = []

    def build(self, size: tuple[int, int]) -> Any:
        import transformers

        model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=size[0], **CONFIG))
        self.built.append(self.weights(model))
        return model

    @staticmethod
    def weights(model: Any) -> tuple[Any, Any]:
        parts = (model.vit.embeddings.position_embeddings, model.classifier.weight)
        return tuple(part.detach().clone() for part in parts)  # type: ignore[return-value]

    def callback(self) -> Any:
        import transformers

        watch = self

        class Callback(transformers.TrainerCallback):
            def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
                watch.begun.append(watch.weights(model))
                blocks = [module for module in model.modules() if type(module).__name__ == "ViTLayer"]
                watch.checkpointed.append([getattr(block, "gradient_checkpointing", False) for block in blocks])

            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
                steps = int(kwargs["optimizer"].state[model.classifier.weight]["step"])
                batch = (args.per_device_train_batch_size, args.gradient_accumulation_steps)
                watch.updates.append((*batch, steps, kwargs["lr_scheduler"].get_last_lr()[0]))

            def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
                watch.ended.append(watch.weights(model))

        return Callback()


def images(size: tuple[int, int]) -> list[dict[str, Any]]:
    import torch

    return [{"pixel_values": torch.rand(3, *size), "labels": place % 5} for place in range(16)]


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Watch:
    """Three phases of a tiny ViT on the CPU."""
    pytest.importorskip("transformers")
    folder: Path = tmp_path_factory.mktemp("phases")
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "image_size": 32, **CONFIG}))
    pasted: dict[str, Any] = {}
    exec(callback_text(by_hand(*PHASES, model=str(folder))), pasted)
    seen = Watch()
    fields = {"output_dir": str(folder), "use_cpu": True, "report_to": "none", "save_strategy": "no"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pasted["train_in_phases"](seen.build, images, {**fields, "disable_tqdm": True}, callbacks=[seen.callback()])
    return seen


def test_every_phase_has_its_batch_and_the_optimizer_goes_on(watch: Watch) -> None:
    assert [update[:3] for update in watch.updates] == [
        (8, 1, 1), (8, 1, 2), (4, 2, 3), (4, 2, 4), (2, 4, 5), (2, 4, 6),
    ]  # fmt: skip


def test_every_phase_checkpoints_the_blocks_that_its_plan_does(watch: Watch) -> None:
    assert watch.checkpointed == [[False, False], [True, True], [True, False]]


def test_what_the_script_has_to_set_is_in_the_code() -> None:
    plain = callback_text(by_hand((32, 8, 1, {}), model="vit_tiny_patch16_224", attn="eager"))
    assert "environ" not in plain
    assert "checkpoint_first_blocks" not in plain
    assert "vit_tiny_patch16_224, fp16, adamw_torch_fused, eager attention, 8 images per update on 1 GPU." in plain
    segments = callback_text(by_hand((32, 8, 1, {}), alloc_conf="expandable_segments:True"))
    assert segments.index("os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'") < segments.index(
        "import torch"
    )


def test_the_learning_rate_falls_through_all_phases(watch: Watch) -> None:
    rates = [update[3] for update in watch.updates]
    assert rates == pytest.approx([5e-5 * left / 6 for left in (5, 4, 3, 2, 1, 0)])


def test_weights_go_on_and_positions_are_resampled(watch: Watch) -> None:
    import torch

    for (drawn, _), (begun, classifier), (ended, weights) in zip(watch.built[1:], watch.begun[1:], watch.ended):
        assert torch.equal(classifier, weights)
        assert torch.equal(begun[:, :1], ended[:, :1]), "the class token's position"
        assert begun.shape == drawn.shape
        assert not torch.equal(begun, drawn)
