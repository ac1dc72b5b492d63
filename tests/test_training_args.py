"""``--training-args``: the user's own file decides, an explicit flag wins, and a contradiction is named."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
import vitmem
from vitmem import InvalidRequest, NotModelled, TrainSettings
from vitmem.training_args import _KINDS, _REFUSED, _SETTINGS

FILE = {"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": True}


def test_the_file_decides():
    settings = TrainSettings.of(training_args={**FILE, "gradient_checkpointing": True, "optim": "adafactor"})
    assert (settings.bs, settings.accum, settings.precision, settings.loop) == (4, 2, "bf16", "trainer")
    assert (settings.grad_checkpointing, settings.optim) == (True, "adafactor")
    assert TrainSettings.of(training_args={"output_dir": "out"}).precision == "fp32"


def test_an_explicit_setting_wins_and_the_contradiction_is_a_warning():
    estimate = vitmem.estimate("test_vit", training_args=FILE, bs=1, accum=2)
    assert (estimate.request["bs"], estimate.request["accum"]) == (1, 2)
    assert [line for line in estimate.warnings if "as asked" in line] == [
        "bs 1 as asked, not the 4 of per_device_train_batch_size in the training arguments"
    ]
    assert "notes" not in estimate.request


def test_a_file_on_the_command_line(tmp_path, capsys):
    from vitmem.cli import main

    path = tmp_path / "args.json"
    path.write_text(json.dumps(FILE))
    assert main(("estimate", "test_vit", "--training-args", str(path), "--json")) == 0
    request = json.loads(capsys.readouterr().out)["request"]
    assert (request["bs"], request["precision"], request["training_args"]) == (4, "bf16", "args.json")


def accumulating(**options):
    return {"gradient_accumulation_kwargs": options}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({**FILE, "fp16": True}, InvalidRequest, "both fp16 and bf16"),
        ({"learning": 1}, InvalidRequest, "no training argument"),
        ({**FILE, "per_device_train_batch_size": "8"}, InvalidRequest, "bs '8'"),
        ({**FILE, "gradient_checkpointing_kwargs": {"every_n_layers": 2}}, NotModelled, "leave out every_n_layers"),
        ({**FILE, "torch_empty_cache_steps": 4}, NotModelled, "empties the allocator's cache"),
        ({**FILE, "use_cpu": True}, NotModelled, "trains on the CPU"),
        ({**FILE, "optim": "sgd", "weight_decay": 0.01}, NotModelled, "copies the gradients"),
        ({"accelerator_config": {"even_batch": False}}, InvalidRequest, "no 'even_batch'; did you mean even_batches"),
        (
            {"gradient_accumulation_steps": 4, "accelerator_config": accumulating(num_steps=2)},
            InvalidRequest,
            "num_steps 2 beside gradient_accumulation_steps 4",
        ),
        ({"accelerator_config": accumulating(sync_each_batch=True)}, NotModelled, "in every micro-step"),
        ({"accelerator_config": {"split_batches": True}}, NotModelled, "divides per_device_train_batch_size"),
        ({"accelerator_config": {"dispatch_batches": True}}, NotModelled, "of all GPUs on the first"),
        ({"accelerator_config": {"even_batches": False}}, NotModelled, "unequal"),
        ({"accelerator_config": {"use_configured_state": True}}, NotModelled, "from a script"),
        ({"ddp_broadcast_buffers": False}, NotModelled, "ddp_broadcast_buffers False is not modelled"),
        ({"ddp_static_graph": True}, NotModelled, "at other moments"),
        ({"ddp_backend": "gloo"}, NotModelled, "other copies than NCCL"),
        ({"output_dir": "out", "parallelism_config": {"tp_size": 2}}, NotModelled, "divides the model"),
        ({"fsdp": True, "deepspeed": {"zero_optimization": {"stage": 2}}}, InvalidRequest, "both fsdp and deepspeed"),
        ("nowhere.json", InvalidRequest, "TrainingArguments.to_json_string"),
    ],
)
def test_what_cannot_be_obeyed_is_said(arguments, error, words):
    with pytest.raises(error, match=words):
        TrainSettings.of(training_args=arguments)


def test_what_is_handed_on_to_accelerate_is_a_setting_or_harmless(tmp_path):
    file = tmp_path / "accelerator.json"
    file.write_text(json.dumps({"use_seedable_sampler": False, "non_blocking": True, **accumulating(num_steps=3)}))
    of_ddp = {"ddp_bucket_cap_mb": 50, "ddp_find_unused_parameters": False, "ddp_backend": "nccl"}
    settings = TrainSettings.of(training_args={**of_ddp, "accelerator_config": str(file)})
    assert settings.accum == 3
    assert (settings.ddp_bucket_cap_mb, settings.ddp_find_unused_parameters) == (50, False)


def test_harmless_options_of_checkpointing_are_taken():
    arguments = {**FILE, "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert TrainSettings.of(training_args=arguments).grad_checkpointing


@pytest.mark.parametrize(
    ("options", "reentrant"),
    [
        (None, False),
        ({}, False),
        ({"use_reentrant": False}, False),
        ({"use_reentrant": True}, True),
        ({"use_reentrant": None}, True),
        ({"preserve_rng_state": False}, True),  # handed on without it: torch's own default
        ({"every_n_layers": 1, "offload": False}, False),  # taken out: nothing is handed on
    ],
)
def test_checkpointing_is_re_entrant_where_torch_is_told_or_left_to_choose(options, reentrant):
    arguments = {**FILE, "gradient_checkpointing": True, "gradient_checkpointing_kwargs": options}
    settings = TrainSettings.of(training_args=arguments)
    assert (settings.grad_checkpointing, settings.checkpoint_reentrant) == (True, reentrant)


def test_options_of_checkpointing_mean_nothing_without_it():
    settings = TrainSettings.of(training_args={**FILE, "gradient_checkpointing_kwargs": {"use_reentrant": True}})
    assert not settings.checkpoint_reentrant


def test_what_transformers_itself_writes():
    transformers = pytest.importorskip("transformers")
    written = transformers.TrainingArguments(output_dir="out", bf16=False, per_device_train_batch_size=16)
    settings = TrainSettings.of(training_args={**json.loads(written.to_json_string()), "use_cpu": False})
    assert (settings.bs, settings.optim, settings.precision) == (16, "adamw_torch_fused", "fp32")


def test_settings_survive_json_without_their_files():
    settings = TrainSettings.of("test_vit", res="64x32", training_args=FILE, bs=1, train="lora", lora_targets="qkv")
    again = TrainSettings.from_dict(json.loads(json.dumps(settings.to_dict())))
    assert again.to_dict() == settings.to_dict()
    assert (again.training_args, again.res) == ("the training arguments", (64, 32))


def test_a_request_is_a_call():
    estimate = vitmem.estimate("test_vit", bs=2, train_samples=1)
    assert any("less than a step" in line for line in estimate.warnings)
    again = vitmem.estimate(**estimate.request)
    assert again.peak == estimate.peak


WRONG = (5, -4, 1.5, True, "x", [1], {"a": 1}, [[]], 10**400)


@pytest.mark.parametrize("field", [*_KINDS, *_SETTINGS, *_REFUSED])
def test_an_argument_of_another_kind_is_never_an_internal_error(field):
    for value in WRONG:
        with contextlib.suppress(InvalidRequest, NotModelled):
            TrainSettings.of(training_args={field: value, "weight_decay": 0.1})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("deepspeed", value) for value in (5, [1], True)),
        ("gradient_checkpointing", "yes"),
        ("gradient_checkpointing_kwargs", 7),
        ("ddp_bucket_cap_mb", "x"),
        ("ddp_bucket_cap_mb", -4),
        ("accelerator_config", 5),
        ("fsdp", 5),
        ("fsdp_config", 5),
        ("optim", ["sgd"]),
    ],
)
def test_an_argument_of_another_kind_is_named(field, value, tmp_path, capsys):
    from vitmem.cli import main

    path = tmp_path / "args.json"
    path.write_text(json.dumps({field: value}))
    assert main(("estimate", "test_vit", "--training-args", str(path))) == 2
    assert " ".join(capsys.readouterr().err.split()).startswith(f"error: args.json: {field} {value!r} is not valid")


@pytest.mark.parametrize("argument", ["deepspeed", "training_args"])
def test_what_is_neither_file_nor_mapping_is_refused(argument):
    with pytest.raises(InvalidRequest, match=f"{argument} 5 is not valid; name a JSON file"):
        TrainSettings.of(**{argument: 5})


def test_one_argument_is_enough_and_deepspeed_is_taken_beside_no_fsdp():
    assert TrainSettings.of(training_args={"gradient_checkpointing": True}).grad_checkpointing
    assert TrainSettings.of(training_args={"fsdp": True}, gpus=2).parallel == "fsdp"
    zero2 = {"zero_optimization": {"stage": 2}}
    assert TrainSettings.of(training_args={"deepspeed": zero2}, gpus=2).parallel == "zero2"
    assert TrainSettings.of(training_args={"fsdp": True, "deepspeed": None}, gpus=2).parallel == "fsdp"
    with pytest.raises(InvalidRequest, match="no deepspeed beside it"):
        TrainSettings.of(training_args={"fsdp": True}, deepspeed=zero2)
    both = {"activation_checkpointing": False, "gradient_checkpointing": True}
    assert not TrainSettings.of(training_args=both).grad_checkpointing  # the newer name decides


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": ' + "9" * 5000 + "}", "a whole number of thousands of digits"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": }', "is not valid JSON: Expecting value: line 1 column 7"),
    ],
)
def test_json_that_cannot_be_read_is_said_without_python(text, words, tmp_path):
    path = tmp_path / "args.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=words) as refused:
        TrainSettings.of(training_args=path)
    assert not re.search("recursion|sys[.]", str(refused.value))


def test_a_byte_order_mark_is_no_content(tmp_path):
    path = tmp_path / "args.json"
    path.write_text(json.dumps(FILE), encoding="utf-8-sig")
    assert TrainSettings.of(training_args=path).bs == 4
