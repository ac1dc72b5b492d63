"""What ``--training-args`` and ``--deepspeed`` say, beside what is asked for explicitly: that wins, and is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .deepspeed_file import DeepSpeedFile
from .deepspeed_file import read as read_deepspeed
from .errors import InvalidRequest
from .training_args import Reading
from .training_args import read as read_arguments

__all__ = ["with_files"]


def with_files(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were ``asked`` for with those of the files below them; ``notes`` name every contradiction.

    Raises ``InvalidRequest`` for files that Trainer does not take together.
    """
    settings, reading = dict(asked), None
    if settings.get("training_args") is not None:
        reading = read_arguments(settings.pop("training_args"))
        if reading.settings.get("parallel") == "fsdp" and settings.get("deepspeed") is not None:
            raise InvalidRequest(f"{reading.name} has fsdp, and Trainer takes no deepspeed beside it; leave out one")
        settings, notes = reading.merged(settings)
        settings |= {"training_args": reading.name, "notes": notes}
    if settings.get("deepspeed") is not None:
        file = read_deepspeed(settings.pop("deepspeed"))
        if reading is not None:
            settings = _under_deepspeed(reading, file, settings, asked)
        settings, notes = file.merged(settings)
        notes = (*settings.get("notes", ()), *notes, *file.notes, *_on_batch(file, settings, asked))
        settings |= {"deepspeed": file.name, "zero_options": file.options, "notes": notes}
    return settings


def _under_deepspeed(
    reading: Reading, file: DeepSpeedFile, settings: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Trainer refuses sizes and precisions that its arguments do not repeat (``fill_match`` of
    transformers 5.24), and leaves the optimizer to DeepSpeed where the file has one."""
    for name in ("bs", "accum", "clip_grad", "precision"):
        said, found = reading.settings.get(name), file.settings.get(name)
        if name in asked or said is None or found in {None, said, "fp32"}:
            continue
        raise InvalidRequest(
            f"{file.name} has {file.fields[name]} for {name} {found}, {reading.name} has {said} in "
            f'{reading.fields[name]}; Trainer refuses that: write "auto" in {file.name}'
        )
    left = {"optim"} & file.settings.keys() - asked.keys()
    return {name: value for name, value in settings.items() if name not in left}


def _on_batch(file: DeepSpeedFile, settings: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """``train_batch_size`` is the product of the three others: transformers 5.24, ``trainer_config_process`` in
    integrations/deepspeed.py, and deepspeed 0.19.8, ``_batch_assertion`` in runtime/config.py."""
    from .settings import TrainSettings  # it imports this module's callers

    sizes = {name: settings.get(name, getattr(TrainSettings(), name)) for name in ("gpus", "bs", "accum")}
    if file.batch is None or any(type(size) is not int or size < 1 for size in sizes.values()):
        return
    gpus, bs, accum = sizes.values()
    total = gpus * bs * accum
    if file.batch == total:
        return
    product = f"gpus {gpus} x bs {bs} x accum {accum} = {total}"
    if asked.keys() & {"bs", "accum"}:
        yield f"{product} images per update as asked, not the {file.batch} of train_batch_size in {file.name}"
        return
    raise InvalidRequest(
        f'{file.name}: train_batch_size {file.batch} is not {product}, which Trainer refuses; write "auto" there, or '
        "ask for the --gpus, --bs and --accum that are meant"
    )
