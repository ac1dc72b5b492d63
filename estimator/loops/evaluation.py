"""Evaluations between two training steps: what each loop's names hold, and what piles up on the GPU.

Batches that repeat an earlier one allocation by allocation are not played: only what they leave behind is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

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

    ``moves``: Trainer then takes what has piled up to the host (``eval_accumulation_steps``).
    """

    size: int
    skipped: int = 0
    moves: bool = False


def parts(settings: TrainSettings) -> Iterator[Part]:
    """The batches to play, in order.

    What piles up is most at the end, or with ``eval_accum`` at the end of the first window of so many batches; behind
    it the loop begins anew, which one batch shows, and a smaller last batch comes once more.
    """
    size, samples = settings.eval_bs, settings.eval_samples
    assert size is not None
    assert samples is not None
    window = None if settings.eval_accum is None else settings.eval_accum * size
    if window is None or samples < window:
        yield from _window(samples, size)
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
    """transformers 5.24 ``Trainer.evaluation_loop``: losses, logits and labels of all batches stay on the GPU.

    ``losses``, ``logits``, ``labels`` and ``inputs`` are names that the next batch binds again.
    """
    run, kept = step.run, list[Tensor]()
    names: dict[str, object] = {}
    batch_size = step.settings.eval_bs or TRAINER_EVAL_BATCH
    with run.evaluation():
        for part in parts(step.settings):
            names["inputs"] = inputs = step.batch(part.size)
            loss, logits = predict(step, *inputs)
            names.update(losses=loss, logits=logits, labels=inputs[1])
            losses = Tensor.empty(run, (batch_size,), loss.dtype)  # repeated, and cut to the last batch's size
            names["losses"] = losses
            new = [losses.alias((part.size,), (1,))] + (
                [logits, inputs[1]] if logits is not None and inputs[1] is not None else []
            )
            del loss, losses, logits, inputs
            _add(kept, new)
            del new
            for rows in _grown(part):
                _grow(kept, rows)
            if part.moves:
                kept.clear()
                for name in ("losses", "logits", "labels"):
                    del names[name]
                run.empty_cache()


def _grown(part: Part) -> Iterator[int]:
    """The rows of skipped batches, some at a time."""
    step = part.size * max(1, -(-part.skipped // (part.size * _GROWTHS)))
    return (min(step, part.skipped - start) for start in range(0, part.skipped, step))


def _grow(kept: list[Tensor], count: int) -> None:
    """What concatenations leave behind, and the blocks that they go through."""
    for place in range(len(kept)):
        shape, dtype, run = kept[place].shape, kept[place].dtype, kept[place].run
        kept[place] = Tensor.empty(run, (shape[0] + count, *shape[1:]), dtype)


def _add(kept: list[Tensor], new: list[Tensor]) -> None:
    """``EvalLoopContainer.add``: old, new and their concatenation exist at once."""
    first = not kept
    for place, rows in enumerate(new):
        if len(rows.shape) > 1:
            shape = Tensor.empty(rows.run, (len(rows.shape),), DType.int64)  # pad_across_processes asks for it
            del shape
        if first:
            kept.append(rows)
        else:
            kept[place] = ops.cat([kept[place], rows], 0)
