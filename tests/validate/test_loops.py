"""The rehearsal's loops against the libraries that they stand for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")

import torch
import transformers
from torch.nn import functional as F
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.settings import TrainSettings
from vitmem.validate.build import build_model
from vitmem.validate.cross_entropy import cross_entropy_loss
from vitmem.validate.loops.recipe import collated_targets


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("dense", [False, True])
def test_the_parts_of_cross_entropy_add_up_to_torchs(dense, smoothing):
    torch.manual_seed(0)
    logits = torch.randn(6, 5)
    target = torch.rand(6, 5) if dense else torch.tensor([0, 4, -100, 2, 2, 1])
    composed = cross_entropy_loss(logits, target, None, 1, -100, smoothing)
    torch.testing.assert_close(composed, F.cross_entropy(logits, target, label_smoothing=smoothing))


@pytest.mark.parametrize("options", [(torch.ones(5),), (None, 2, -100, 0.1)], ids=["weighted", "summed and smoothed"])
def test_other_cross_entropies_are_refused(options):
    with pytest.raises(NotModelled, match="this kind of cross-entropy"):
        cross_entropy_loss(torch.zeros(6, 5), torch.zeros(6, dtype=torch.int64), *options)


@pytest.mark.parametrize("loop", ["timm", "plain"])
def test_collated_targets_are_what_the_libraries_mix(loop):
    settings = TrainSettings(loop=loop, mixup=True, bs=4, num_classes=7)
    targets = collated_targets(settings, 4)
    assert (targets.dtype, tuple(targets.shape)) == (torch.float32, (4, 7))
    torch.testing.assert_close(targets.sum(1), torch.ones(4))
    # timm smooths while it collates, torchvision leaves that to the loss
    assert bool((targets == 0).any()) is (loop == "plain")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"model": "facebook/vit-mae-base", "loop": "plain"}, InvalidRequest),
        ({"model": "WinKawaks/vit-tiny-patch16-224", "loop": "trainer"}, NotModelled),
    ],
)
def test_mixup_is_refused_where_there_is_no_loss_for_it(settings, error):
    with pytest.raises(error, match="mix"):
        build_model(TrainSettings(mixup=True, depth=1, **settings))


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"pixel_values": torch.zeros(3, 32, 32), "labels": index % 2}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("max_grad_norm", "clipped_to"), [(0.0, float("inf")), (2.0, 2.0)])
def test_trainer_takes_the_norm_also_where_it_does_not_clip(tmp_path, monkeypatch, max_grad_norm, clipped_to):
    norms, gradients = [], []

    class Callback(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            gradients.extend(parameter.grad for parameter in model.parameters())

    config = transformers.ViTConfig(
        hidden_size=12, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, image_size=32, num_labels=2
    )
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, max_grad_norm=max_grad_norm, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, per_device_train_batch_size=2,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.ViTForImageClassification(config), options, train_dataset=Images(), callbacks=[Callback()]
    )
    clip = trainer.accelerator.clip_grad_norm_
    monkeypatch.setattr(
        trainer.accelerator,
        "clip_grad_norm_",
        lambda parameters, norm: norms.append(norm) or clip(parameters, norm),
    )
    trainer.train()
    assert norms == [clipped_to] * 2
    assert gradients
    assert all(gradient is None for gradient in gradients)  # a callback's EMA comes after zero_grad
