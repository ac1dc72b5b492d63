"""preflight on a real Trainer: what becomes which setting, and what gets no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import vitmem  # noqa: E402
from tiny_trainer import BATCH, Images, make_trainer, tiny  # noqa: E402
from vitmem.errors import DoesNotFit, NotModelled  # noqa: E402
from vitmem.validate import MemoryWarning, estimate_of, preflight  # noqa: E402

pytestmark = pytest.mark.usefixtures("quiet")


def same_as(estimate: Any, model: Any, folder: Path, **settings: Any) -> None:
    """The estimate is that of the saved configuration with these settings."""
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    transformers.AutoConfig.for_model(**config).save_pretrained(folder)
    expected = vitmem.estimate(folder, num_classes=5, bs=BATCH, optim=settings.pop("optim", "adamw_torch"), **settings)
    assert estimate.peak == expected.peak
    assert estimate.at_peak == expected.at_peak
    assert estimate.model.num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        ({}, {"precision": "fp32"}),
        ({"bf16": True}, {"precision": "bf16"}),
        ({"gradient_accumulation_steps": 2}, {"precision": "fp32", "accum": 2}),
        ({"gradient_checkpointing": True}, {"precision": "fp32", "grad_checkpointing": True}),
        ({"optim": "adamw_torch_fused"}, {"precision": "fp32", "optim": "adamw_torch_fused"}),
        ({"max_grad_norm": 0.0}, {"precision": "fp32", "clip_grad": 0.0}),
    ],
    ids=str,
)
def test_arguments_become_settings(tmp_path: Path, arguments: dict[str, Any], settings: dict[str, Any]) -> None:
    arguments = dict(arguments)
    autocast = arguments.pop("bf16", False)
    trainer = make_trainer(tmp_path / "out", **arguments)
    trainer.args.bf16 = autocast  # TrainingArguments refuses it on a machine without a GPU
    estimate = estimate_of(trainer)
    same_as(estimate, trainer.model, tmp_path / "model", **settings)


def test_the_models_own_rates_and_attention_are_taken(tmp_path: Path) -> None:
    model = tiny(hidden_dropout_prob=0.1, attn_implementation="eager")
    estimate = estimate_of(make_trainer(tmp_path / "out", model))
    assert estimate.request["attn"] == "eager"
    same_as(estimate, model, tmp_path / "model", precision="fp32", attn="eager", dropout=0.1)


def test_a_frozen_model_is_a_linear_probe_or_frozen_layers(tmp_path: Path) -> None:
    model = tiny()
    model.vit.requires_grad_(False)
    assert estimate_of(make_trainer(tmp_path, model)).request["train"] == "linear-probe"
    model = tiny()
    model.vit.embeddings.requires_grad_(False)
    next(iter(model.vit.layers if hasattr(model.vit, "layers") else model.vit.encoder.layer)).requires_grad_(False)
    assert estimate_of(make_trainer(tmp_path, model)).request["freeze_layers"] == 1


def test_lora_is_read_from_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    names = [name.rpartition(".")[2] for name, _ in tiny().named_modules()]
    if "query" not in names:
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    model = peft.get_peft_model(tiny(), config)
    estimate = estimate_of(make_trainer(tmp_path, model))
    assert (estimate.request["train"], estimate.request["lora_rank"]) == ("lora", 4)
    assert estimate.model.num_trainable_parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_a_pure_bf16_model_is_pure(tmp_path: Path) -> None:
    model = tiny().to(torch.bfloat16)
    assert estimate_of(make_trainer(tmp_path, model)).request["precision"] == "pure-bf16"


def test_an_optimizer_that_was_passed_in_is_read(tmp_path: Path) -> None:
    model = tiny()
    fused = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    estimate = estimate_of(make_trainer(tmp_path, model, optimizers=(fused, None)))
    assert estimate.request["optim"] == "adamw_torch_fused"
    foreach = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with pytest.raises(NotModelled, match="foreach borrows memory by group"):
        estimate_of(make_trainer(tmp_path, model, optimizers=(foreach, None)))


class Config:
    """What Trainer makes of ``--deepspeed``."""

    def __init__(self, **zero: Any) -> None:
        self.config = {
            "train_micro_batch_size_per_gpu": BATCH,
            "gradient_accumulation_steps": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"reduce_bucket_size": 5_000_000, **zero},
        }

    def is_zero3(self) -> bool:
        stage: int = self.config["zero_optimization"]["stage"]  # type: ignore[index,assignment]
        return stage == 3


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_is_read_from_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int) -> None:
    from transformers.integrations import deepspeed

    trainer = make_trainer(tmp_path / "out", optim="adamw_torch_fused")
    config = Config(stage=stage)
    trainer.is_deepspeed_enabled, trainer.args.hf_deepspeed_config, trainer.args.bf16 = True, config, True
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", None)
    deepspeed.set_hf_deepspeed_config(config)
    if stage == 3:  # built under zero.Init: in parts, and in the engine's type
        for parameter in trainer.model.parameters():
            parameter.ds_shape, parameter.data = parameter.shape, torch.empty(0, dtype=torch.bfloat16)
    estimate = estimate_of(trainer)
    assert (estimate.request["parallel"], estimate.request["gpus"]) == (f"zero{stage}", 2)
    assert estimate.request["zero_options"] == {"reduce_bucket_size": 5_000_000}
    same_as(estimate, tiny(), tmp_path / "model", gpus=2, deepspeed=config.config, optim=None, precision="bf16")
    assert deepspeed.is_deepspeed_zero3_enabled() is (stage == 3)


def test_several_processes_are_ddp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path / "out")
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    same_as(estimate_of(trainer), trainer.model, tmp_path / "model", gpus=2, parallel="ddp", precision="fp32")


def test_a_model_of_model_init_is_that_which_is_trained(tmp_path: Path) -> None:
    class WithInit(transformers.Trainer):
        def __init__(self, model: Any, **arguments: Any) -> None:
            super().__init__(model_init=lambda: tiny(), **arguments)  # noqa: PLW0108

    trainer = make_trainer(tmp_path / "out", kind=WithInit)
    same_as(estimate_of(trainer), trainer.model, tmp_path / "model", precision="fp32")


@pytest.mark.parametrize("how", ["overridden", "handed in"])
def test_a_loss_of_ones_own_gets_a_reason_and_no_number(tmp_path: Path, how: str) -> None:
    class Own(transformers.Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)

    trainer = make_trainer(tmp_path, kind=Own if how == "overridden" else None)
    if how == "handed in":
        trainer.compute_loss_func = lambda outputs, labels, **more: outputs.logits.sum()
    with pytest.warns(MemoryWarning, match="no estimate: .*MemoryCallback.*vitmem estimate --training-args"):
        assert preflight(trainer) is None


def test_a_timm_model_in_the_trainer(tmp_path: Path) -> None:
    config = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", num_labels=5, model_args={"depth": 2, "img_size": 32}
    )
    model = transformers.TimmWrapperForImageClassification(config)
    estimate = estimate_of(make_trainer(tmp_path, model))
    assert estimate.model.num_parameters == sum(p.numel() for p in model.parameters())
    assert estimate.model.library == "timm"


def altered(change: str) -> Any:
    model = tiny()
    if change == "head":
        model.classifier = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.GELU(), torch.nn.Linear(8, 5))
    if change == "dropout":
        next(m for m in model.modules() if isinstance(m, torch.nn.Dropout)).p = 0.3
    if change == "heads":
        next(m for m in model.modules() if "num_attention_heads" in vars(m)).num_attention_heads = 1
    if change == "half a model":
        model.vit.layernorm.to(torch.float16)
    if change == "a frozen bias":
        model.classifier.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("head", "parameters differ, such as classifier"),
        ("dropout", r"modules differ, .*p=0\.3"),
        ("heads", r"modules differ, .*num_attention_heads=1"),
        ("half a model", "that mixture is not modelled"),
        ("a frozen bias", "frozen in a way that no setting describes"),
    ],
)
def test_a_model_that_is_not_its_configuration_gets_no_number(tmp_path: Path, change: str, reason: str) -> None:
    trainer = make_trainer(tmp_path, altered(change))
    with pytest.raises(NotModelled, match=reason):
        estimate_of(trainer)
    with pytest.warns(MemoryWarning, match="no estimate: .*"):
        assert preflight(trainer) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"optim": "sgd", "weight_decay": 0.1}, "weight_decay"),
        ({"use_cpu": True}, "trains on the CPU"),
        ({"torch_compile": True}, "compiled step"),
    ],
)
def test_arguments_that_are_not_modelled_get_no_number(tmp_path: Path, arguments: Any, reason: str) -> None:
    with pytest.raises(NotModelled, match=reason):
        estimate_of(make_trainer(tmp_path, **arguments))


def test_images_of_another_size_get_no_number(tmp_path: Path) -> None:
    with pytest.raises(NotModelled, match="images are 64x64, the model is built for 32x32"):
        estimate_of(make_trainer(tmp_path, dataset=Images(64)))


def test_what_does_not_fit_raises_or_warns(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(DoesNotFit, match="the training will not fit"):
        preflight(trainer, memory="100MiB")
    with pytest.warns(MemoryWarning, match="the training will not fit"):
        assert preflight(trainer, memory="100MiB", action="warn") is not None
    assert preflight(trainer, gpu="rtx4090") is not None
