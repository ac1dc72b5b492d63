"""An Estimate as a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..result import Estimate, Layer
from ..units import format_bytes
from .folding import fold
from .tables import UNKNOWN, Cell, Column, Notes, Report, Table

__all__ = ["PHASES", "estimate_report", "phase_name", "request_line", "words"]

#: How a sentence names a phase.
PHASES: Mapping[str, str] = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer_step": "the optimizer step",
    "evaluation": "an evaluation",
    "first_step": "the first step",
    "resume": "a run from a checkpoint",
    "last_batch": "an epoch's last step",
    "training": "training",
}

_FIGURES = (
    ("live tensors, unrounded", "tensor_bytes"),
    ("torch.cuda.max_memory_allocated()", "allocated_bytes"),
    ("torch.cuda.max_memory_reserved()", "reserved_bytes"),
    ("nvidia-smi, this process", "device_bytes"),
)


def estimate_report(estimate: Estimate) -> Report:
    """Headline first, then from the peak downwards to single layers."""
    return Report(
        headline=_headline(estimate),
        subtitle=_subtitle(estimate),
        tables=(
            _figures(estimate),
            _at_peak(estimate),
            _phases(estimate),
            _states(estimate),
            *([] if estimate.host is None else [_host(estimate.host)]),
            _layers(estimate.layers),
        ),
        notes=(
            Notes(title="Warnings", lines=estimate.warnings),
            Notes(title="Assumptions", lines=estimate.assumptions),
            Notes(title="Not modelled", lines=estimate.not_modelled),
        ),
        document=estimate.to_dict(),
    )


def phase_name(phase: str) -> str:
    """A phase within a sentence."""
    return PHASES.get(phase, words(phase))


def words(name: str) -> str:
    """``optimizer_step`` as a person writes it."""
    return name.replace("_", " ")


def _headline(estimate: Estimate) -> str:
    peak = estimate.peak
    if peak.allocated_bytes is None or peak.allocated_phase is None:
        place = f", at {peak.layer}" if peak.layer else ""
        return f"Peak {format_bytes(peak.tensor_bytes)} of live tensors in {phase_name(peak.phase)}{place}."
    place = f", at {peak.allocated_layer}" if peak.allocated_layer else ""
    return f"Peak {format_bytes(peak.allocated_bytes)} in {phase_name(peak.allocated_phase)}{place}."


def _subtitle(estimate: Estimate) -> tuple[str, ...]:
    lines = [request_line(estimate)]
    if estimate.scaling is not None:
        scaling = estimate.scaling
        fixed, slope = format_bytes(scaling.fixed_bytes), format_bytes(scaling.bytes_per_image)
        lines.append(f"Near this batch: {fixed} + {slope} per image.")
    lines += _larger(estimate)
    if estimate.verdict is not None:
        lines.append(_verdict(estimate.verdict))
    return tuple(lines)


def request_line(estimate: Estimate) -> str:
    """The configuration in one sentence."""
    request, model = estimate.request, estimate.model
    height, width = model.image_size
    bs = request.get("bs")
    parts = [f"{model.name} ({model.library})", f"{height}x{width} px", f"{bs} image{'' if bs == 1 else 's'}"]
    parts += [str(request[name]) for name in ("precision", "optim") if request.get(name)]
    if request.get("grad_checkpointing"):
        reentrant = "re-entrant " if request.get("checkpoint_reentrant") else ""
        parts.append(f"{reentrant}gradient checkpointing")
    if request.get("gpus", 1) != 1:
        parts.append(f"{request['gpus']} GPUs ({request.get('parallel')}), figures per GPU")
    return ", ".join(parts)


def _larger(estimate: Estimate) -> Iterator[str]:
    """The phases beside the steady step that need more than it does."""
    for name in ("first_step", "evaluation", "resume"):
        phase = estimate.phases.get(name)
        if phase is not None and phase.tensor_bytes > estimate.peak.tensor_bytes:
            needed = phase.tensor_bytes if phase.allocated_bytes is None else phase.allocated_bytes
            yield f"{phase_name(name).capitalize()} needs more: {format_bytes(needed)}."


def _verdict(verdict: Mapping[str, object]) -> str:
    """One sentence, and which phase it is that decided, where it is not training."""
    phase = verdict.get("phase")
    decided = f" The most is reserved in {phase_name(phase)}." if isinstance(phase, str) and phase != "training" else ""
    return _fits(verdict) + decided


def _fits(verdict: Mapping[str, object]) -> str:
    gpu, headroom = verdict.get("gpu") or "the given memory", verdict.get("headroom_bytes")
    known = isinstance(headroom, int)
    amount = format_bytes(abs(headroom)) if isinstance(headroom, int) else ""
    if verdict.get("fits") == "yes":
        return f"Fits {gpu}" + (f": {amount} to spare." if known else ".")
    if verdict.get("fits") == "no":
        return f"Does not fit {gpu}" + (f": {amount} too much." if known else ".")
    return f"Borderline on {gpu}: headroom {format_bytes(headroom) if isinstance(headroom, int) else UNKNOWN}."


def _figures(estimate: Estimate) -> Table:
    peak = estimate.peak
    rows: list[tuple[Cell, ...]] = [(label, getattr(peak, name)) for label, name in _FIGURES]
    low, high = peak.device_low_bytes, peak.device_high_bytes
    note = None
    if low is not None and high is not None:
        note = (
            f"nvidia-smi: between {format_bytes(low)} and {format_bytes(high)}, as far as the context's size is known."
        )
    columns = (Column(name="as seen by"), Column(name="bytes", kind="bytes"))
    return Table(name="peak", title="The peak", columns=columns, rows=tuple(rows), note=note)


def _at_peak(estimate: Estimate) -> Table:
    peak = estimate.peak
    name, total = (
        ("tensors", peak.tensor_bytes) if peak.allocated_bytes is None else ("allocated", peak.allocated_bytes)
    )
    present = sorted(((kind, size) for kind, size in estimate.at_peak.items() if size), key=lambda item: -item[1])
    columns = (Column(name="kind"), Column(name="bytes", kind="bytes"), Column(name="share", kind="share"))
    return Table(
        name="at_peak",
        title="What the peak is made of",
        columns=columns,
        rows=tuple((words(kind), size, size / total if total else 0.0) for kind, size in present),
        total=(name, total, 1.0 if total else 0.0),
        note=" ".join(_remarks(estimate.at_peak)) or None,
    )


def _remarks(at_peak: Mapping[str, int | None]) -> Iterator[str]:
    for text, figure in (("None of", 0), ("Not known", None)):
        if kinds := [words(kind) for kind, size in at_peak.items() if size == figure]:
            yield f"{text}: {', '.join(kinds)}."


def _phases(estimate: Estimate) -> Table:
    columns = (
        Column(name="phase"),
        Column(name="tensors", kind="bytes"),
        Column(name="allocated", kind="bytes"),
    )
    rows: list[tuple[Cell, ...]] = []
    for name, phase in estimate.phases.items():
        if phase is None and name == "last_batch":
            continue  # nobody asked for one
        figures = (None, None) if phase is None else (phase.tensor_bytes, phase.allocated_bytes)
        rows.append((words(name), *figures))
    return Table(name="phases", title="Largest moment of each phase", columns=columns, rows=tuple(rows))


_HOST = (
    ("pinned by the data loader", "pinned_bytes"),
    ("data loader's batches and samples", "dataloader_bytes"),
    ("offloaded", "offload_bytes"),
    ("copies while a checkpoint is saved", "saving_bytes"),
    ("a checkpoint on disk", "checkpoint_disk_bytes"),
)


def _host(host: Mapping[str, int | None]) -> Table:
    columns = (Column(name="what"), Column(name="bytes", kind="bytes"))
    rows: list[tuple[Cell, ...]] = [(label, host.get(name)) for label, name in _HOST]
    if host.get("offload_bytes"):
        rows[0] = ("pinned, of the loader and what is offloaded", host.get("pinned_bytes"))
    if (gpus := host.get("node_gpus") or 1) > 1:
        rows.append((f"memory of a node's {gpus} GPUs together", host.get("node_bytes")))
    note = "Memory: at most, per GPU."
    return Table(name="host", title="Host memory and disk", columns=columns, rows=tuple(rows), note=note)


def _states(estimate: Estimate) -> Table:
    states = estimate.states
    rows: tuple[tuple[Cell, ...], ...] = (
        ("parameters", states.parameter_bytes),
        ("buffers", states.buffer_bytes),
        ("gradients", states.gradient_bytes),
        ("optimizer", states.optimizer_bytes),
        ("activations saved for backward", states.saved_activation_bytes),
    )
    columns = (Column(name="state"), Column(name="bytes", kind="bytes"))
    total, trained = estimate.model.num_parameters, estimate.model.num_trainable_parameters
    note = f"{total:,} parameters, {'all' if trained == total else f'{trained:,}'} of them trained."
    return Table(name="states", title="What a step keeps", columns=columns, rows=rows, note=note)


def _layers(layers: tuple[Layer, ...]) -> Table:
    folds = fold(
        (row.name, (row.parameter_bytes, row.saved_activation_bytes, row.peak_temporary_bytes)) for row in layers
    )
    columns = (
        Column(name="layer"),
        Column(name="count", kind="count"),
        Column(name="parameters", kind="bytes"),
        Column(name="saved", kind="bytes"),
        Column(name="temporaries", kind="bytes"),
    )
    sums = (sum(row.parameter_bytes for row in layers), sum(row.saved_activation_bytes for row in layers))
    folded = any(row.count > 1 for row in folds)
    return Table(
        name="layers",
        title="Layers",
        columns=columns,
        rows=tuple((row.name, row.count, *row.values) for row in folds),  # type: ignore[arg-type]
        total=("all", len(layers), *sums, ""),
        note="A row for several equal layers shows the figures of one." if folded else None,
    )
