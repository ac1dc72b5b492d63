"""The host's figures against real files and a real ``DataLoader``."""

from __future__ import annotations

import gc
import time
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")
pytest.importorskip("transformers")

import torch
import vitmem
from vitmem.host import loader_bytes, safetensors_bytes, torch_save_bytes, weights_of
from vitmem.pipeline import resolved
from vitmem.play import play
from vitmem.settings import TrainSettings
from vitmem.validate.build import build_model
from vitmem.validate.optim import make_optimizer


def estimated_weights(settings):
    plan, asked = resolved(settings)
    scope = play(plan, asked).scope
    named = [[(name, t.shape, t.dtype) for name, t in tensors.items()] for tensors in (scope.parameters, scope.buffers)]
    return weights_of(plan.model.library, settings.loop, *named)


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",
        "swin_tiny_patch4_window7_224",
        "eva02_tiny_patch14_224",
        "xcit_nano_12_p16_224",
        "openai/clip-vit-base-patch32",
        "microsoft/swinv2-tiny-patch4-window8-256",
        "facebook/data2vec-vision-base",
    ],
)
def test_the_file_of_the_weights_to_the_byte(name, tmp_path):
    settings = TrainSettings.of(name, bs=1, **({} if "swin" in name else {"depth": 1}))
    build_model(settings, "cpu").model.save_pretrained(tmp_path)
    assert safetensors_bytes(estimated_weights(settings)) == (tmp_path / "model.safetensors").stat().st_size


def test_older_names_make_a_longer_header_and_nothing_else(tmp_path):
    settings = TrainSettings.of("WinKawaks/vit-tiny-patch16-224", bs=1, depth=1)
    build_model(settings, "cpu").model.save_pretrained(tmp_path)
    real = (tmp_path / "model.safetensors").stat().st_size
    assert 0 <= real - safetensors_bytes(estimated_weights(settings)) < 20 * 40  # so many characters per tensor


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "sgd-momentum", "adagrad"])
def test_the_file_of_an_optimizer_to_the_byte_but_for_its_pickle(optim, tmp_path):
    settings = TrainSettings.of("vit_tiny_patch16_224", bs=1, depth=1, optim=optim)
    model = build_model(settings, "cpu").model
    optimizer = make_optimizer(settings, model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    path = tmp_path / "optimizer.pt"
    torch.save(optimizer.state_dict(), path)
    storages = zip_sizes(path, "/data/")
    (pickled,) = zip_sizes(path, "/data.pkl")
    assert torch_save_bytes("optimizer", storages, pickled) == path.stat().st_size
    # what the estimate leaves out: the pickle, and step counts of the host
    host = vitmem.estimate("vit_tiny_patch16_224", bs=1, depth=1, optim=optim).host
    weights = safetensors_bytes(estimated_weights(settings))
    missing = path.stat().st_size - (host["checkpoint_disk_bytes"] - weights)
    assert 0 <= missing < 90 * len(storages) + 256 * len(list(model.parameters()))


def zip_sizes(path, part):
    with zipfile.ZipFile(path) as file:
        infos = [info for info in file.infolist() if "serialization" not in info.filename]
    return [info.file_size for info in infos if part in info.filename]


class Images(torch.utils.data.Dataset):
    """Samples of a MiB."""

    def __len__(self):
        return 400

    def __getitem__(self, place):
        return torch.zeros(2**18)


def shared_bytes():
    """Shared memory of this machine, as the kernel counts it."""
    text = Path("/proc/meminfo").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Shmem:"))


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="counts the kernel's shared memory")
def test_workers_keep_so_many_batches_in_shared_memory():
    # GIVEN two workers, three batches ahead of 4 MiB each
    workers, prefetch, batch_bytes = 2, 3, 4 * 2**20
    gc.collect()
    before = shared_bytes()
    loader = iter(torch.utils.data.DataLoader(Images(), 4, num_workers=workers, prefetch_factor=prefetch))
    held = next(loader)  # what the loop has been handed
    for _ in range(50):
        time.sleep(0.1)
        found = shared_bytes() - before
        if found >= (workers * prefetch + 1) * batch_bytes:
            break
    # THEN all are there, the one that was handed out included; the bound also counts the samples in the workers
    assert abs(found - (workers * prefetch + 1) * batch_bytes) < batch_bytes / 2
    assert found < loader_bytes(batch_bytes, workers, prefetch, pinned=False)
    del held, loader
