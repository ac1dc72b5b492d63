"""From a followed run to a :class:`Measurement`: the peak, its parts, the states and the per-layer table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from .build import Built
from .events import PHASES, Allocation, Moment, Span, kinds_at, live_at, peak_within
from .layers import MODEL
from .loops import STEPS
from .measurement import MeasuredLayer, MeasuredStates, Measurement

__all__ = ["Seen", "summarise"]


class Seen(Protocol):
    """A run that was followed allocation by allocation, and what the reported step held at its milestones."""

    built: Built
    forward_tick: int
    backward_tick: int
    held: tuple[Allocation, ...]
    gradient_bytes: int
    optimizer_bytes: int

    @property
    def events(self) -> list[Allocation]: ...
    @property
    def spans(self) -> list[Span]: ...
    @property
    def num_steps(self) -> int: ...
    def spans_of(self, step: int) -> list[Span]: ...
    def spans_named(self, phase: str) -> list[Span]: ...
    def layer(self, path: str) -> str: ...


def summarise(
    watch: Seen, *, backend: str, device: str, versions: Mapping[str, str], notes: Sequence[str]
) -> Measurement:
    """The figures of the reported step."""
    events = watch.events
    peaks = {phase: _highest(events, [s for s in watch.spans if s.phase == phase]) for phase in PHASES}
    phase = max(PHASES, key=lambda name: peaks[name].bytes)
    peak = peaks[phase]
    parameters = list(watch.built.model.parameters())
    return Measurement(
        backend=backend,
        peak_bytes=peak.bytes,
        peak_phase=phase,
        peak_layer=MODEL if peak.newest is None else peak.newest.layer,
        at_peak=kinds_at(events, peak.tick),
        phases={name: moment.bytes for name, moment in peaks.items()} | _others(watch),
        states=_states(watch),
        layers=_layers(watch),
        num_parameters=sum(p.numel() for p in parameters),
        num_trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        versions=versions,
        device=device,
        notes=tuple(notes),
    )


def _others(watch: Seen) -> dict[str, int]:
    """The first step, and what was played besides steps."""
    spans = {"first_step": watch.spans_of(0)}
    if watch.num_steps > STEPS:
        spans["last_batch"] = watch.spans_of(STEPS)
    spans |= {name: watch.spans_named(name) for name in ("evaluation",)}
    return {name: _highest(watch.events, found).bytes for name, found in spans.items() if found}


def _highest(events: list[Allocation], spans: list[Span]) -> Moment:
    return max((peak_within(events, span) for span in spans), key=lambda moment: moment.bytes)


def _states(watch: Seen) -> MeasuredStates:
    events = watch.events
    kinds = kinds_at(events, watch.forward_tick)
    return MeasuredStates(
        parameter_bytes=kinds.get("parameters", 0),
        buffer_bytes=kinds.get("buffers", 0),
        gradient_bytes=watch.gradient_bytes,
        optimizer_bytes=watch.optimizer_bytes,
        saved_activation_bytes=sum(event.bytes for event in _saved(watch)),
        autocast_weight_bytes=kinds.get("autocast_weights", 0),
        end_of_forward_bytes=live_at(events, watch.forward_tick),
        end_of_backward_bytes=live_at(events, watch.backward_tick),
        end_of_step_bytes=live_at(events, watch.spans[-1].ends),
    )


def _saved(watch: Seen) -> list[Allocation]:
    """Storages made during the last forward that live at its end, less what only a name of the loop holds."""
    begins = max(span.begins for span in watch.spans if span.phase == "forward")
    return [
        event
        for event in watch.events
        if event.kind == "activations"
        and event.born > begins
        and event.alive(watch.forward_tick)
        and not any(event is held for held in watch.held)
    ]


def _layers(watch: Seen) -> tuple[MeasuredLayer, ...]:
    """Every layer of the model in its own order; the two columns add up to the states' totals."""
    parameters = _by_layer(event for event in watch.events if event.kind == "parameters")
    saved = _by_layer(_saved(watch))
    modules = [watch.layer(name) for name, _ in watch.built.model.named_modules()]
    names = dict.fromkeys([*modules, *parameters, *saved])
    return tuple(
        MeasuredLayer(name=name, parameter_bytes=parameters[name], saved_activation_bytes=saved[name])
        for name in names
        if parameters[name] or saved[name]
    )


def _by_layer(events: Iterable[Allocation]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for event in events:
        totals[event.layer] += event.bytes
    return totals
