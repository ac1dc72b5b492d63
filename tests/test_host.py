"""The host's side: what the loaders keep, what is pinned, what a checkpoint takes. Real files are in tests/validate."""

from __future__ import annotations

import pytest
import vitmem
from vitmem.errors import InvalidRequest
from vitmem.host import loader_bytes, pinned_bytes, safetensors_bytes, torch_save_bytes
from vitmem.units import DType

TINY = {"model": "vit_tiny_patch16_224", "depth": 1, "bs": 4}
IMAGES, LABELS = 4 * 3 * 224 * 224, 4 * 8


def test_pinned_blocks_are_powers_of_two():
    assert pinned_bytes([4096, 4097, 32], workers=0, prefetch=0) == 2 * (4096 + 8192 + 32)
    # four batches made ahead, and the one that the loop has
    assert pinned_bytes([100], workers=2, prefetch=2) == 5 * 128


@pytest.mark.parametrize(
    ("workers", "prefetch", "peak_bytes"), [(0, 0, 8_388_672), (2, 2, 20_971_680), (3, 3, 41_943_360)]
)
def test_pinned_memory_as_pytorch_counts_it(workers, prefetch, peak_bytes):
    # torch.cuda.host_memory_stats()["allocated_bytes.peak"] of torch 2.14.1 after 15 batches of 4 images of 224 px,
    # with and without accelerate 1.15's DataLoaderShard
    assert pinned_bytes([4 * IMAGES, LABELS], workers, prefetch) == peak_bytes


def test_what_workers_make_ahead():
    assert loader_bytes(10, 0, 0, pinned=False) == 20  # the batch and its samples
    assert loader_bytes(10, 4, 2, pinned=False) == (8 + 4 + 1) * 10
    assert loader_bytes(10, 4, 2, pinned=True) == (8 + 4) * 10


def test_each_loop_has_its_own_loader():
    trainer, timm, plain = (vitmem.estimate(**TINY, loop=loop).host for loop in ("trainer", "timm", "plain"))
    assert (trainer["pinned_bytes"], trainer["dataloader_bytes"]) == (
        2 * (4 * 2**20 + LABELS),
        2 * (4 * IMAGES + LABELS),
    )
    assert (timm["pinned_bytes"], timm["dataloader_bytes"]) == (0, 13 * (IMAGES + LABELS))  # bytes, four workers
    assert (plain["pinned_bytes"], plain["dataloader_bytes"]) == (0, trainer["dataloader_bytes"])
    request = vitmem.estimate(**TINY, loop="timm").request
    assert [request[name] for name in ("workers", "prefetch", "pin_memory")] == [4, 2, False]


def test_a_setting_wins_over_the_loop():
    host = vitmem.estimate(**TINY, workers=2, prefetch=3, pin_memory=False).host
    assert (host["pinned_bytes"], host["dataloader_bytes"]) == (0, 9 * (4 * IMAGES + LABELS))
    assert host["offload_bytes"] == 0
    with pytest.raises(InvalidRequest, match="prefetch needs workers"):
        vitmem.estimate(**TINY, prefetch=3)
    with pytest.raises(InvalidRequest, match="must be True or False"):
        vitmem.estimate(**TINY, pin_memory="yes")


def test_a_checkpoint_has_the_weights_and_the_optimizers_state():
    estimate = vitmem.estimate(**TINY, loop="plain")
    states = estimate.states
    tensors = states.parameter_bytes + states.optimizer_bytes
    assert tensors < estimate.host["checkpoint_disk_bytes"] < 1.01 * tensors
    # Trainer copies all weights at once, torch.save one tensor
    assert vitmem.estimate(**TINY).host["saving_bytes"] == states.parameter_bytes
    assert estimate.host["saving_bytes"] == 4 * 192 * 1000


def test_an_empty_file_has_its_fixed_parts():
    assert safetensors_bytes([]) == 8 + 32  # {"__metadata__":{"format":"pt"}}, padded
    one = safetensors_bytes([("w", (2, 3), DType.float16)])
    assert one == 8 + 88 + 12
    assert torch_save_bytes("o", []) < torch_save_bytes("optimizer", []) < torch_save_bytes("optimizer", [1])


def test_what_nobody_measured_is_null():
    mixed = vitmem.estimate(**TINY, loop="timm", mixup=True, pin_memory=True)
    assert mixed.host["dataloader_bytes"] is None
    assert mixed.host["pinned_bytes"] == pinned_bytes([IMAGES, 4 * 1000 * 4], 4, 2)  # a target for every class
    for added in ({"ema": True}, {"train": "lora"}):
        estimate = vitmem.estimate(**TINY, **added)
        assert (estimate.host["checkpoint_disk_bytes"], estimate.host["saving_bytes"]) == (None, None)
        assert any("checkpoints" in line for line in estimate.not_modelled)
