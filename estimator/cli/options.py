"""The settings of ``TrainSettings`` as click options, generated from one table. Values are checked by TrainSettings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from ..errors import InvalidRequest
from ..settings import CHOICES, TrainSettings
from ..units import parse_number

__all__ = ["NUMBER", "SECTIONS", "SectionedCommand", "model_argument", "setting_options", "settings_of", "values_of"]

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])
_ZERO_STAGES = ("1", "2", "3")


class Row(NamedTuple):
    """One setting: ``metavar`` is what its value looks like, ``None`` for a switch or a list of choices."""

    name: str
    help: str
    metavar: str | None = None


def _rows(*rows: tuple[str, str | None, str]) -> tuple[Row, ...]:
    return tuple(Row(name=name, metavar=metavar, help=help_) for name, metavar, help_ in rows)


#: Every setting of the contract under the heading it has in ``--help``.
SECTIONS: Mapping[str, tuple[Row, ...]] = {
    "Input": _rows(
        ("res", "PX|HxW", "training image size in pixels, as 512 or 512x384 (height x width)"),
        ("bs", "N", "images per GPU per micro-step"),
        ("accum", "N", "gradient accumulation micro-steps"),
        ("train_samples", "N", "images of an epoch, for its smaller last step"),
        ("eval_bs", "N", "images per GPU in an evaluation's batch; the loop's own if left out"),
        ("eval_samples", "N", "images of an evaluation; three batches if left out"),
        ("eval_accum", "N", "Trainer's eval_accumulation_steps: batches until results go to the host"),
    ),
    "Model": _rows(
        ("patch", "N", "patch size in pixels"),
        ("window", "N", "attention window in tokens"),
        ("dim", "N", "embedding width"),
        ("depth", "N", "number of blocks"),
        ("heads", "N", "attention heads"),
        ("mlp_ratio", "X", "hidden width of the MLP, in embedding widths"),
        ("num_classes", "N", "classes of the head"),
        ("dropout", "P", "dropout rate"),
        ("attn_dropout", "P", "dropout rate of attention probabilities"),
        ("drop_path", "P", "stochastic depth rate"),
        ("patch_drop", "P", "share of patches dropped"),
    ),
    "Training": _rows(
        ("precision", None, "fp16 and bf16 are autocast over fp32 weights; pure-* casts the model"),
        ("optim", "NAME", "optimizer, as Trainer's optim names it"),
        ("loop", None, "whose training loop"),
        ("train", None, "what is trained"),
        ("lora_rank", "N", "rank of the adapters, with --train lora; PEFT's own is 8"),
        ("lora_dropout", "P", "dropout rate in front of the adapters; PEFT's own is 0"),
        ("lora_targets", "NAMES", "what is adapted: qkv,proj or all-linear; query and value unless said"),
        ("freeze_layers", "N", "embeddings and the first N blocks are frozen"),
        ("zero_grad", None, "when old gradients go away"),
        ("ema", None, "keep an exponential moving average of the weights on the GPU"),
        (
            "clip_grad",
            "X",
            "clip gradients to this norm; 0: unclipped, though Trainer still takes the norm for its log",
        ),
        ("label_smoothing", "P", "label smoothing of the loss"),
        ("mixup", None, "mixup or cutmix: a target for every class"),
        ("compile", None, "torch.compile"),
        ("training_args", "FILE", "read settings from the JSON that TrainingArguments writes; other flags win"),
        ("deepspeed", "FILE", "read settings from the DeepSpeed JSON that Trainer is given; other flags win"),
    ),
    "Memory": _rows(
        ("grad_checkpointing", None, "activation checkpointing, as the model's library does it"),
        ("checkpoint_layers", "N", "checkpoint the first N blocks only"),
        ("checkpoint_reentrant", None, "checkpoint with use_reentrant=True: TIMM_REENTRANT_CKPT=1, transformers 4"),
        ("attn", None, "attention implementation"),
        ("sdpa_kernel", None, "the CUDA kernel behind sdpa"),
    ),
    "Hardware": _rows(
        ("gpus", "N", "number of GPUs"),
        ("parallel", None, "data parallelism"),
        ("offload", None, "what lives in host memory"),
        ("wrap_layers", "CLASS", "FSDP under Trainer: the class of blocks, as transformer_layer_cls_to_wrap names it"),
        (
            "reshard_after_forward",
            None,
            "FSDP: weights go between their forward and backward passes, as it does itself",
        ),
        ("ddp_bucket_cap_mb", "MIB", "DDP: how large its buckets are"),
        ("ddp_find_unused_parameters", None, "DDP: look for parameters without a gradient; the loop's own if left out"),
        ("gpu", "NAME", "the GPU it must fit into"),
        ("memory", "SIZE", "the memory it must fit into, as 24GiB"),
        ("alloc_conf", "CONF", "PYTORCH_CUDA_ALLOC_CONF, as expandable_segments:True"),
        ("torch", "X.Y", "the version of PyTorch that trains"),
        ("workers", "N", "processes of the data loader; the loop's own if left out"),
        ("prefetch", "N", "batches that each of them makes ahead"),
        ("pin_memory", None, "the data loader pins its batches; the loop's own if left out"),
    ),
}

_FIELDS = {field.name: field for field in dataclasses.fields(TrainSettings)}
#: Types of fields whose values are parsed by TrainSettings, from the text as it stands.
_TEXTS = ("str", "str | None", "tuple[int, int] | None", "tuple[str, ...] | None")


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic only from click 8.4 on


class _Value(_ParamType):
    """A number where the text is one, else the text: TrainSettings has the say, in the same words as from Python."""

    name = "value"

    def __init__(self, choices: tuple[str, ...] = (), *, text: bool = False) -> None:
        self.choices = choices
        self.text = text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if self.text or not isinstance(value, str) else parse_number(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        matches = (choice for choice in self.choices if choice.startswith(incomplete))
        return [click.shell_completion.CompletionItem(choice) for choice in matches]


#: The type of an option whose value the library checks.
NUMBER = _Value()


class SectionedCommand(click.Command):
    """Shows options under the headings of ``SECTIONS``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        headings = {row.name: heading for heading, rows in SECTIONS.items() for row in rows} | {"zero": "Hardware"}
        lines: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                lines.setdefault(headings.get(param.name or "", "Output"), []).append(record)
        for heading in (*SECTIONS, "Output"):
            if heading in lines:
                with formatter.section(heading):
                    formatter.write_dl(lines[heading])


def setting_options(command: _Decorated) -> _Decorated:
    """Decorate a command with an option for every setting; only those that were given reach :func:`settings_of`."""
    zero = click.option(
        "--zero", type=_Value(_ZERO_STAGES, text=True), metavar="[1|2|3]", help="short for --parallel zeroN"
    )
    command = zero(command)
    for row in reversed([row for rows in SECTIONS.values() for row in rows]):
        command = _option(row)(command)
    return command


def model_argument(command: _Decorated) -> _Decorated:
    """Decorate a command with the optional MODEL argument."""
    return click.argument("model", required=False, metavar="[MODEL]")(command)


def settings_of(model: str | None, given: Mapping[str, Any]) -> TrainSettings:
    """The settings that the options spell; raises ``InvalidRequest``."""
    return TrainSettings.of(**values_of(model, given))


def values_of(model: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given as keywords of ``TrainSettings``; ``--zero`` is spelt out."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if model is not None:
        chosen["model"] = model
    stage = chosen.pop("zero", None)
    if stage is not None:
        if stage not in _ZERO_STAGES:
            raise InvalidRequest(f"zero {stage!r} is not a stage; choose one of {', '.join(_ZERO_STAGES)}")
        if chosen.setdefault("parallel", f"zero{stage}") != f"zero{stage}":
            raise InvalidRequest(f"--zero {stage} contradicts --parallel {chosen['parallel']}; give one of them")
    return chosen


def _option(row: Row) -> Callable[[_Decorated], _Decorated]:
    flag = row.name.replace("_", "-")
    default = _FIELDS[row.name].default
    help_ = row.help if default is None or isinstance(default, bool) else f"{row.help}  [default: {default}]"
    if _FIELDS[row.name].type in ("bool", "bool | None"):
        return click.option(f"--{flag}/--no-{flag}", row.name, default=None, help=help_)
    choices = CHOICES.get(row.name, ())
    metavar = row.metavar or f"[{'|'.join(choices)}]"
    text = bool(choices) or _FIELDS[row.name].type in _TEXTS
    return click.option(
        f"--{flag}", row.name, type=_Value(choices, text=text), default=None, metavar=metavar, help=help_
    )
