"""Evaluations between two training steps: what each loop's names hold, and what piles up on the GPU.

Batches that repeat an earlier one allocation by allocation are not played: only what they leave behind is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, NamedTuple

from .. import ops
from ..engine import Tensor
from ..settings import TrainSettings
from ..step import Step
from ..units import DType

__all__ = ["BATCHES", "TRAINER_EVAL_BATCH", "plain", "prefetched", "timm", "trainer"]

#: Without a size of the evaluation set: the third batch finds every name bound to an older batch's value.
BATCHES = 3
#: transformers 5.24, training_args.py, ``per_device_eval_batch_size``.
TRAINER_EVAL_BATCH = 8
#: Longer evaluations are played by their first two and last two batches.
_PLAYED = 5

#: The concatenations of the batches in between are made in so many steps at most: the allocator caches every block.
_GROWTHS = 256

_EVAL_STREAM = 2  # every PrefetchLoader has a stream of its own

#: A loss of logits and targets.
Criterion = Callable[[Step, Tensor, Tensor], Tensor]
#: Loss and logits, None where the logits are not asked for.
Predict = Callable[[Step, Tensor, "Tensor | None"], "tuple[Tensor, Tensor | None]"]


class Part(NamedTuple):
    """A batch of ``size`` images; behind it come so many ``skipped`` images whose batches repeat it.

    ``moves``: Trainer then takes what has piled up to the host (``eval_accumulation_steps``). So many of the images
    of all ranks are ``repeated`` ones, which fill up their last batches.
    """

    size: int
    skipped: int = 0
    moves: bool = False
    repeated: int = 0


def parts(settings: TrainSettings, ranks: int = 1) -> Iterator[Part]:
    """The batches to play, in order; those of one of so many ranks are all whole (accelerate, BatchSamplerShard).

    What piles up is most at the end, or with ``eval_accum`` at the end of the first window of so many batches; behind
    it the loop begins anew, which one batch shows, and a smaller last batch comes once more.
    """
    size, samples = settings.eval_bs, settings.eval_samples
    assert size is not None
    assert samples is not None
    repeated = 0
    if ranks > 1:
        whole = ceil(ceil(samples / size) / ranks) * size
        repeated, samples = whole * ranks - samples, whole
    window = None if settings.eval_accum is None else settings.eval_accum * size
    if window is None or samples < window:
        *before, last = _window(samples, size)
        yield from before
        yield last._replace(repeated=repeated)
        return
    *before, last = _window(window, size)
    yield from before
    yield last._replace(moves=True)
    if samples >= window + size:
        yield Part(size, moves=settings.eval_accum == 1)
    if samples % size:
        yield Part(samples % size)


def _window(samples: int, size: int) -> list[Part]:
    whole, rest = divmod(samples, size)
    count = whole + bool(rest)
    last = Part(rest or size)
    if count <= _PLAYED:
        return [*[Part(size)] * (count - 1), last]
    return [Part(size), Part(size, skipped=(count - 4) * size), Part(size), last]


def plain(step: Step, criterion: Criterion) -> None:
    """PyTorch's quickstart: a function with names of its own; losses and correct predictions are added up on the host.

    The training loop's names stay bound.
    """
    step.start("evaluation")
    names: dict[str, Tensor | None] = {}
    with step.run.evaluation():
        for part in parts(step.settings):
            batch = dict(zip(("x", "y"), step.batch(part.size)))
            names.update(batch)
            del batch
            _evaluate_batch(step, names, criterion)


def _evaluate_batch(step: Step, names: dict[str, Tensor | None], criterion: Criterion) -> None:
    x, y = names["x"], names["y"]
    with step.autocast():
        if y is None:
            names["loss"] = step.model(x)[0]
            return
        names["out"] = out = step.model(x)
        names["loss"] = criterion(step, out, y)
    del out
    _count_correct(step, y.shape[0])


def _count_correct(step: Step, size: int) -> None:
    """``(out.argmax(1) == y).type(torch.float).sum().item()``."""
    index = Tensor.empty(step.run, (size,), DType.int64)
    equal = Tensor.empty(step.run, (size,), DType.bool)
    del index
    number = Tensor.empty(step.run, (size,), DType.float32)
    del equal
    total = Tensor.empty(step.run, (), DType.float32)
    del number, total


def timm(step: Step) -> None:
    """timm 1.0.31 train.py, ``validate``: a prefetching loader of its own, cross-entropy, top-1 and top-5 accuracy.

    It is called for the EMA copy, too.
    """
    loader = [Tensor.empty(step.run, (1, 3, 1, 1), DType.float32, kind="inputs") for _ in ("mean", "std")]
    for _ in range(1 + step.settings.ema):
        _validate(step)
    del loader


def _validate(step: Step) -> None:
    run, names = step.run, dict[str, object]()
    sizes = [part.size for part in parts(step.settings)]
    with run.evaluation(inference=True):
        following: tuple[Tensor, Tensor] | None = prefetched(step, sizes[0], stream=_EVAL_STREAM)
        for place in range(len(sizes)):
            fetched = prefetched(step, sizes[place + 1], stream=_EVAL_STREAM) if place + 1 < len(sizes) else None
            names["batch"], following = following, fetched
            del fetched
            _validate_batch(step, names)


def _validate_batch(step: Step, names: dict[str, object]) -> None:
    batch = names["batch"]
    assert isinstance(batch, tuple)
    x, y = batch
    with step.autocast():
        if step.model.own_loss:
            names["loss"] = step.model(x)[0]
            return
        names["output"] = output = step.model(x)
        names["loss"] = ops.cross_entropy(output, y)
    names["accuracy"] = _accuracy(output)


def _accuracy(output: Tensor) -> tuple[Tensor, Tensor]:
    """timm/utils/metrics.py: one percentage for the first and one for the five likeliest classes."""
    run, (size, classes) = output.run, output.shape
    count = min(5, classes)
    values = Tensor.empty(run, (size, count), output.dtype)
    pred = Tensor.empty(run, (size, count), DType.int64)
    correct = Tensor.empty(run, (count, size), DType.bool)
    percentages = tuple(_percentage(correct, k) for k in (1, count))
    del values, pred
    return percentages  # type: ignore[return-value]


def _percentage(correct: Tensor, count: int) -> Tensor:
    run, length = correct.run, count * correct.shape[1]
    flat = Tensor.empty(run, (length,), DType.bool)
    number = Tensor.empty(run, (length,), DType.float32)
    del flat
    total = Tensor.empty(run, (), DType.float32)
    del number
    hundredfold = Tensor.empty(run, (), DType.float32)
    del total
    percentage = Tensor.empty(run, (), DType.float32)
    del hundredfold
    return percentage


def prefetched(step: Step, size: int, stream: int = 1) -> tuple[Tensor, Tensor]:
    """timm's ``PrefetchLoader``: bytes to the device, and a float batch from them, on a stream of its own."""
    with step.run.side_stream(stream):
        pixels = None if step.run.kernels.on_cpu else step.images(size, DType.uint8)
        target = step.labels(size)
        batch = step.images(size)
        del pixels
    return batch, target


def trainer(step: Step, predict: Predict) -> None:
    """transformers 5.24 ``Trainer.evaluation_loop``: losses, logits and labels of all batches stay on the GPU, those of
    all ranks on each.

    ``losses``, ``logits``, ``labels`` and ``inputs`` are names that the next batch binds again.
    """
    run, kept, ranks = step.run, dict[str, Tensor](), step.strategy.num_gathered
    names: dict[str, Any] = {}
    batch_size = step.settings.eval_bs or TRAINER_EVAL_BATCH
    with run.evaluation():
        for part in parts(step.settings, ranks):
            names["inputs"] = inputs = step.batch(part.size)
            loss, logits = predict(step, step.strategy.prepared(inputs[0]), inputs[1])
            names.update(losses=loss, logits=logits, labels=inputs[1])
            losses = Tensor.empty(run, (batch_size,), loss.dtype)  # repeated, and cut to the last batch's size
            names["losses"] = losses
            kinds = ("losses", "logits", "labels") if logits is not None and inputs[1] is not None else ("losses",)
            del loss, losses, logits, inputs
            for name in kinds:
                names[name] = _gathered(names[name], ranks)
                _add(kept, name, names[name], part.size * ranks - part.repeated)
            for rows in _grown(part):
                _grow(kept, rows * ranks)
            if part.moves:
                kept.clear()
                for name in ("losses", "logits", "labels"):
                    del names[name]
                run.empty_cache()


def _grown(part: Part) -> Iterator[int]:
    """The rows of skipped batches, some at a time."""
    step = part.size * max(1, -(-part.skipped // (part.size * _GROWTHS)))
    return (min(step, part.skipped - start) for start in range(0, part.skipped, step))


def _grow(kept: dict[str, Tensor], count: int) -> None:
    """What concatenations leave behind, and the blocks that they go through."""
    for name, rows in kept.items():
        kept[name] = Tensor.empty(rows.run, (rows.shape[0] + count, *rows.shape[1:]), rows.dtype)


def _gathered(rows: Tensor, ranks: int) -> Tensor:
    """``pad_across_processes``, which asks all ranks for the shape of what has a second dimension, and ``gather`` of
    accelerate 1.15: gloo on the CPU takes a tensor for each rank, and they are concatenated (utils/operations.py)."""
    run = rows.run
    if len(rows.shape) > 1:
        shape = Tensor.empty(run, (len(rows.shape),), DType.int64)
        shapes = _all(shape, ranks)
        del shapes, shape
    return _all(rows, ranks)


def _all(rows: Tensor, ranks: int) -> Tensor:
    if ranks == 1:
        return rows
    run = rows.run
    received = [Tensor.empty(run, rows.shape, rows.dtype) for _ in range(ranks if run.kernels.on_cpu else 0)]
    together = Tensor.empty(run, (ranks * rows.shape[0], *rows.shape[1:]), rows.dtype)
    del received
    return together


def _add(kept: dict[str, Tensor], name: str, rows: Tensor, count: int) -> None:
    """``EvalLoopContainer.add``: old, new and their concatenation exist at once."""
    if rows.shape[0] != count:
        rows = rows.alias((count, *rows.shape[1:]), rows.strides)
    kept[name] = ops.cat([kept[name], rows], 0) if name in kept else rows
