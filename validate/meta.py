"""The third training step of the real model on the meta device: nothing is computed, every storage is counted.

Runs with and without a GPU, with CPU-only and CUDA builds of torch. What differs from plain CUDA tensors is put right
in :mod:`vitmem.validate.tracker` (the engine's in-place sums) and :mod:`vitmem.validate.autocast` (casts and kernels).
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from vitmem.errors import NotModelled
from vitmem.settings import TrainSettings

from .attention import SdpaChoice
from .autocast import CudaSemantics
from .build import build_model, named_refusals
from .caches import forget_cached_tensors
from .events import Allocation, Span, peak_within
from .loops import LOOPS, Job
from .measurement import Measurement
from .optim import make_optimizer
from .phases import eval_sizes, last_sizes, on_host
from .segments import marked
from .summary import summarise
from .versions import versions
from .watch import Watch

__all__ = ["Rehearsal", "measure", "rehearse", "resume_bytes"]

DEVICE = "meta"
_NOTES = ("attention kernels and autocast follow CUDA's sm80 generation",)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The measurement with the allocations behind it, in order of birth, and the model that was built.

    ``resolved`` are the settings that the user left open, as they were chosen.
    """

    library: str
    class_name: str
    image_size: tuple[int, int]
    measurement: Measurement
    events: tuple[Allocation, ...]
    spans: tuple[Span, ...]
    sdpa_calls: Mapping[str, int]
    resolved: Mapping[str, Any]


def measure(settings: TrainSettings) -> Measurement:
    """The third step's figures; raises ``InvalidRequest`` or ``NotModelled`` where it cannot say."""
    return rehearse(settings).measurement


def rehearse(settings: TrainSettings, *, cuda: bool = True) -> Rehearsal:
    """The third step, allocation by allocation; ``cuda=False`` follows the CPU's rules (fp32, eager attention)."""
    if settings.compile:
        raise NotModelled("compile=True is not rehearsed on the meta device: inductor traces CUDA tensors")
    with _quiet(), _as_on_cuda():
        built = build_model(settings, DEVICE)
        forget_cached_tensors(built.model)
        sdpa = SdpaChoice(kernel=settings.sdpa_kernel)
        optimizer = make_optimizer(settings, built.model)
        watch = Watch(built, optimizer)
        semantics = CudaSemantics(watch.tracker, sdpa, cuda=cuda)
        job = Job(
            settings=settings,
            built=built,
            optimizer=optimizer,
            device=DEVICE,
            last_sizes=last_sizes(settings),
            eval_sizes=eval_sizes(settings, built) if cuda else (),
        )
        with named_refusals(settings, "trained"), marked(watch.tracker), watch.tracker, semantics.active():
            LOOPS[settings.loop](job, watch)
    return Rehearsal(
        library=built.library,
        class_name=type(built.core).__name__,
        image_size=built.image_size,
        measurement=summarise(watch, backend="meta", device=DEVICE, versions=versions(settings.train), notes=_NOTES),
        events=tuple(watch.tracker.events),
        spans=tuple(watch.spans),
        sdpa_calls=dict(sdpa.calls),
        resolved=built.resolved,
    )


def resume_bytes(settings: TrainSettings) -> int:
    """The largest moment of a run that a checkpoint's optimizer state begins, up to the end of its first step."""
    with _quiet(), _as_on_cuda():
        checkpoint = on_host(_followed(settings, None).optimizer.state_dict())
        watch = _followed(settings, checkpoint)
    return max(peak_within(watch.tracker.events, span).bytes for span in watch.tracker.spans)


def _followed(settings: TrainSettings, checkpoint: dict[str, Any] | None) -> Watch:
    """One step of the real model, from ``checkpoint`` on."""
    built = build_model(settings, DEVICE)
    forget_cached_tensors(built.model)
    optimizer = make_optimizer(settings, built.model)
    watch = Watch(built, optimizer)
    semantics = CudaSemantics(watch.tracker, SdpaChoice(kernel=settings.sdpa_kernel))
    job = Job(settings=settings, built=built, optimizer=optimizer, device=DEVICE, checkpoint=checkpoint, num_steps=1)
    with named_refusals(settings, "trained"), marked(watch.tracker), watch.tracker, semantics.active():
        LOOPS[settings.loop](job, watch)
    return watch


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Libraries warn about meta tensors and defaults that do not change an allocation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Foreach and fused implementations are offered for meta tensors as they are for CUDA's."""
    foreach = "torch.utils._foreach_utils._get_foreach_kernels_supported_devices"
    fused = "torch.optim.optimizer._get_fused_kernels_supported_devices"
    with mock.patch(foreach, return_value=[DEVICE]), mock.patch(fused, return_value=[DEVICE, "cpu"]):
        yield
