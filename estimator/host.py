"""Memory and disk of the host: the data loader's batches, pinned memory, checkpoints, and what saving one copies.

Pure arithmetic on shapes. Every figure is an upper bound of what is there at one moment, and exact where it says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from .errors import InvalidRequest
from .settings import TrainSettings
from .units import DType

__all__ = [
    "LOADERS",
    "NODE_GPUS",
    "Loader",
    "host_bytes",
    "loader_bytes",
    "not_modelled",
    "of_node",
    "pinned_bytes",
    "safetensors_bytes",
    "torch_save_bytes",
    "weights_of",
    "with_loader",
]

#: A tensor of a checkpoint: its name, shape and type.
Named = tuple[str, tuple[int, ...], DType]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """A loop's own ``DataLoader``, and the bytes of a pixel value on the host (None: the model's type)."""

    workers: int
    pin_memory: bool
    pixel_bytes: int | None
    source: str


LOADERS: Mapping[str, Loader] = {
    "trainer": Loader(
        workers=0, pin_memory=True, pixel_bytes=4, source="transformers 5.24, training_args.py: dataloader_*"
    ),
    "timm": Loader(workers=4, pin_memory=False, pixel_bytes=1, source="timm 1.0.31, train.py: --workers, --pin-mem"),
    "plain": Loader(workers=0, pin_memory=False, pixel_bytes=None, source="torch 2.14, DataLoader"),
}

#: GPUs of a node where there are more in all: DGX, HGX and the clouds' machines of eight.
NODE_GPUS = 8
_PREFETCH = 2  # torch 2.14, utils/data/dataloader.py, where there are workers
_SAFETENSORS = {
    DType.float32: "F32",
    DType.float16: "F16",
    DType.bfloat16: "BF16",
    DType.float64: "F64",
    DType.int64: "I64",
    DType.bool: "BOOL",
    DType.uint8: "U8",
}
_LABEL_BYTES = 8
_TARGET_BYTES = 4  # of a class, with mixup


def with_loader(settings: TrainSettings) -> TrainSettings:
    """``settings`` with the loop's own data loader where the user left it open."""
    loader = LOADERS[settings.loop]
    workers = loader.workers if settings.workers is None else settings.workers
    if settings.prefetch is not None and not workers:
        raise InvalidRequest("prefetch needs workers that make batches ahead; add --workers 2")
    return dataclasses.replace(
        settings,
        workers=workers,
        prefetch=settings.prefetch or (_PREFETCH if workers else None),
        pin_memory=loader.pin_memory if settings.pin_memory is None else settings.pin_memory,
    )


def loader_bytes(batch_bytes: int, workers: int, prefetch: int, *, pinned: bool) -> int:
    """Batches in pageable or shared memory, with the samples that they are collated from, at most.

    Without workers, one batch and its samples. With workers, ``prefetch`` batches of each are asked for, each worker
    has the samples of one, and the loop has been handed one (a pinned one, where they are pinned).
    """
    if not workers:
        return 2 * batch_bytes
    return (workers * prefetch + workers + (not pinned)) * batch_bytes


def pinned_bytes(sizes: Iterable[int], workers: int, prefetch: int) -> int:
    """Page-locked blocks for the tensors of a batch, a power of two each (ATen/core/CachingHostAllocator.h), at most.

    Every batch that the workers have made is pinned, and the one that the loop has been handed; none is unpinned.
    Without workers, the block of one batch is not free yet when the next is pinned.
    """
    return sum(1 << (size - 1).bit_length() for size in sizes) * (max(workers * prefetch, 1) + 1)


def safetensors_bytes(tensors: Iterable[Named]) -> int:
    """A ``model.safetensors`` to the byte: length, JSON header padded to 8, data (safetensors 0.5, tensor.rs)."""
    return _of_safetensors(tuple(tensors))


@lru_cache(maxsize=32)
def _of_safetensors(tensors: tuple[Named, ...]) -> int:
    start, entries = 0, ['"__metadata__":{"format":"pt"}']
    for name, shape, dtype in sorted(tensors, key=lambda tensor: (-tensor[2].size, tensor[0])):
        stop = start + prod(shape) * dtype.size
        dims = ",".join(map(str, shape))
        entries.append(f'"{name}":{{"dtype":"{_SAFETENSORS[dtype]}","shape":[{dims}],"data_offsets":[{start},{stop}]}}')
        start = stop
    header = len("{" + ",".join(entries) + "}")
    return 8 + -(-header // 8) * 8 + start


#: The records of ``torch.save`` besides the pickle and the storages (torch 2.14, serialization.py; miniz).
_RECORDS = ((".format_version", 1), (".storage_alignment", 2), ("byteorder", 6))
_LAST_RECORDS = (("version", 2), (".data/serialization_id", 40))
_ALIGNMENT = 64


def torch_save_bytes(stem: str, storages: Iterable[int], pickle_bytes: int = 0) -> int:
    """A file of ``torch.save`` named ``stem``.pt: a stored zip whose records begin at multiples of 64 bytes.

    Exact for a given pickle (about 75 bytes per tensor), which is left out by default.
    """
    return _of_torch_save(stem, tuple(storages), pickle_bytes)


@lru_cache(maxsize=32)
def _of_torch_save(stem: str, storages: tuple[int, ...], pickle_bytes: int) -> int:
    data = ((f"data/{place}", size) for place, size in enumerate(storages))
    at = directory = 0
    for name, size in (("data.pkl", pickle_bytes), *_RECORDS, *data, *_LAST_RECORDS):
        length = len(stem) + 1 + len(name)
        at += 30 + length  # the local header, with an extra field of at least 4 bytes up to the boundary
        at = -(-(at + 4) // _ALIGNMENT) * _ALIGNMENT + size + 16  # the data and its descriptor
        directory += 46 + length
    return at + directory + 98  # both end-of-directory records and their locator


def weights_of(library: str, loop: str, parameters: Iterable[Named], buffers: Iterable[Named]) -> list[Named]:
    """The tensors of ``state_dict()``: parameters and persistent buffers.

    timm's and transformers' buffers are not persistent but for a batch norm's statistics; torchvision's are. The
    Trainer's wrapper keeps a timm model under a name. transformers writes some models under the names that they had
    before version 5, which makes a header longer by a few hundred bytes.
    """
    kept = [buffer for buffer in buffers if library == "torchvision" or buffer[0].endswith(_STATISTICS)]
    prefix = "timm_model." if library == "timm" and loop == "trainer" else ""
    return [(prefix + name, shape, dtype) for name, shape, dtype in (*parameters, *kept)]


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def host_bytes(
    settings: TrainSettings,
    image_size: tuple[int, int],
    pixel_dtype: DType,
    weights: Sequence[Named],
    states: Sequence[int],
    *,
    labelled: bool,
) -> dict[str, int | None]:
    """The contract's ``host``: ``weights`` are the tensors of the model's state, ``states`` the optimizer's in bytes.

    ``saving_bytes``: safetensors holds all weights on the host until the file is written, ``torch.save`` one storage.
    """
    loader = LOADERS[settings.loop]
    assert settings.workers is not None
    workers, prefetch = settings.workers, settings.prefetch or 0
    images = settings.bs * 3 * prod(image_size) * (loader.pixel_bytes or pixel_dtype.size)
    target = settings.num_classes * _TARGET_BYTES if settings.mixup else _LABEL_BYTES
    sizes = [images, *([settings.bs * target] if labelled or settings.loop == "timm" else [])]
    model = [prod(shape) * dtype.size for _, shape, dtype in weights]
    trainer = settings.loop == "trainer"
    disk = (
        safetensors_bytes(weights) + torch_save_bytes("optimizer", states)
        if trainer
        else torch_save_bytes("last", [*model, *states])
    )
    pinned = bool(settings.pin_memory)
    return {
        "pinned_bytes": pinned_bytes(sizes, workers, prefetch) if pinned else 0,
        "dataloader_bytes": None if settings.mixup else loader_bytes(sum(sizes), workers, prefetch, pinned=pinned),
        "offload_bytes": 0,
        "checkpoint_disk_bytes": disk if _saves_all(settings) else None,
        "saving_bytes": max([sum(model) if trainer else max(model), *states]) if _saves_all(settings) else None,
    }


def of_node(settings: TrainSettings, own: Mapping[str, int | None], offload_bytes: int) -> dict[str, int | None]:
    """Host memory of all ranks on one node: each has its own loader, and its own share of what is offloaded."""
    gpus = min(settings.gpus, NODE_GPUS)
    pinned, loaded = own["pinned_bytes"], own["dataloader_bytes"]
    known = pinned is not None and loaded is not None
    return {"node_gpus": gpus, "node_bytes": gpus * (pinned + loaded + offload_bytes) if known else None}  # type: ignore[operator]


def _saves_all(settings: TrainSettings) -> bool:
    """Whether a checkpoint is the model's state and the optimizer's."""
    return not settings.ema and settings.train != "lora"


def not_modelled(settings: TrainSettings) -> tuple[str, ...]:
    """Why a figure is None."""
    return (
        *(["the data loader's memory: what mixup borrows"] if settings.mixup else []),
        *([] if _saves_all(settings) else ["checkpoints of adapted or averaged models"]),
    )
