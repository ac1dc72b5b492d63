"""Each optimizer on one matrix and one vector: what it keeps and what its step borrows, counted by hand."""

from __future__ import annotations

from itertools import accumulate

import pytest
import vitmem
from vitmem.engine import Run, Tensor
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.kernels import Gpu, Kernels
from vitmem.optimizers import OPTIMIZERS, Group, States
from vitmem.pipeline import resolved
from vitmem.play import Played
from vitmem.settings import CHOICES, TrainSettings
from vitmem.units import DType

TINY = {"model": "vit_tiny_patch16_224", "bs": 1, "depth": 1}
MATRIX, VECTOR = (64, 128), (100,)
N, M = 64 * 128, 100  # their elements
BLOCKS = N // 256


def played(name, *groups, dtype=DType.float32, decayed=False, embedding=False, gpu=None):
    """The ledger of two steps over groups of parameters of the given shapes."""
    run = Run(kernels=Kernels(gpu=gpu or Gpu()), parameter_dtype=dtype)
    run.start_phase("setup", kind="temporaries")
    made = [tuple(Tensor.empty(run, shape, dtype, kind="parameters") for shape in shapes) for shapes in groups]
    tables = {id(p) for parameters in made for p in parameters} if embedding else ()
    states = States(run, OPTIMIZERS[name], tables)
    for p in (p for parameters in made for p in parameters if OPTIMIZERS[name].at_construction):
        states(p)
    for _ in range(2):
        run.start_step()
        run.start_phase("optimizer_step", kind="temporaries")
        OPTIMIZERS[name].step([Group(parameters=parameters, decayed=decayed) for parameters in made], states)
    return run.ledger()


def totals(ledger, kind):
    """Bytes of this kind after every event."""
    signed = (
        (event, ledger.bytes[event]) if event >= 0 else (~event, -ledger.bytes[~event]) for event in ledger.events
    )
    return list(accumulate(size if ledger.kinds[i] == kind else 0 for i, size in signed))


def kept(name, *shapes, **options):
    return totals(played(name, shapes, **options), "optimizer_state")[-1]


def borrowed(name, *groups, **options):
    """The most bytes of temporaries at once in the second step."""
    ledger = played(name, *groups, **options)
    return max(totals(ledger, "temporaries")[ledger.first_event(ledger.steps[-1]) :], default=0)


KEPT = {
    "adamw_torch": 8 * (N + M),
    "adamw_torch_fused": 8 * (N + M) + 2 * 4,  # a step count on the device for each parameter
    "adam": 8 * (N + M),
    "nadam": 8 * (N + M),
    "radam": 8 * (N + M),
    "adamax": 8 * (N + M),
    "adagrad": 4 * (N + M),
    "sgd": 0,
    "sgd-momentum": 4 * (N + M),
    "sgd-nesterov": 4 * (N + M),
    "rmsprop": 4 * (N + M),
    "lion": 4 * (N + M),
    "adafactor": 4 * (64 + 128) + 4 * M + 2 * 4,  # a row, a column, and the root mean square of each parameter
    "adamw_8bit": 2 * (N + 4 * BLOCKS) + 8 * M + 2 * 1024,  # small tensors in fp32, two quantile maps
    "adamw_bnb_8bit": 2 * (N + 4 * BLOCKS) + 8 * M + 2 * 1024,
    "paged_adamw_8bit": 2 * (N + 4 * BLOCKS) + 8 * M + 2 * 1024,  # nothing here is large enough to be paged
    "paged_adamw_32bit": 8 * (N + M),
    "ademamix": 12 * (N + M),
    "ademamix_8bit": 3 * (N + 4 * BLOCKS) + 12 * M + 2 * 1024,
    "paged_ademamix_32bit": 12 * (N + M),
    "paged_ademamix_8bit": 3 * (N + 4 * BLOCKS) + 12 * M + 2 * 1024,
    "lion_32bit": 4 * (N + M),
    "lion_8bit": N + 4 * BLOCKS + 4 * M + 1024,
    "paged_lion_32bit": 4 * (N + M),
    "paged_lion_8bit": N + 4 * BLOCKS + 4 * M + 1024,
    "rmsprop_bnb": 4 * (N + M),
    "rmsprop_bnb_32bit": 4 * (N + M),
    "rmsprop_bnb_8bit": N + 4 * BLOCKS + 4 * M + 1024,
    "adamw_torch_8bit": 2 * (N + 4 * BLOCKS + 1024) + 8 * M,  # a map for each average
    "adamw_torch_4bit": 2 * (N // 2 + 4 * BLOCKS + 64) + 8 * M,
    "schedule_free_adamw": 8 * (N + M),
    "schedule_free_radam": 8 * (N + M),
    "schedule_free_sgd": 4 * (N + M),
    "stable_adamw": 8 * (N + M) + 2 * (4 + 1 + 4),
    "grokadamw": 0,
    "adamw_anyprecision": 8 * (N + M),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name):
    assert kept(name, MATRIX, VECTOR) == KEPT[name]


def test_every_optimizer_is_counted_or_refused():
    assert {name for name, row in OPTIMIZERS.items() if not row.refused} == set(KEPT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adamw_torch", 4 * (N + M)),
        ("adafactor", 4 * (64 + 128) + 4 * M + 2 * 4),  # fp32 whatever the parameters are
        ("adamw_8bit", 2 * (N + 4 * BLOCKS) + 8 * M + 2 * 1024),
        ("adamw_torch_8bit", 2 * (N + 4 * BLOCKS + 1024) + 4 * M),
        ("stable_adamw", 6 * (N + M) + 2 * (2 + 4)),  # Kahan's compensation
        ("adamw_anyprecision", 8 * (N + M)),
    ],
)
def test_what_is_kept_of_16_bit_parameters(name, expected):
    assert kept(name, MATRIX, VECTOR, dtype=DType.bfloat16) == expected


def test_blocks_of_bitsandbytes_are_rounded_up_and_torchao_wants_them_whole():
    assert kept("lion_8bit", (4097,)) == 4097 + 17 * 4 + 1024
    assert kept("adamw_torch_8bit", (4097,)) == 8 * 4097


def test_one_quantile_map_serves_all_parameters():
    assert kept("lion_8bit", MATRIX, MATRIX) == 2 * (N + 4 * BLOCKS) + 1024
    assert kept("adamw_torch_8bit", MATRIX, MATRIX) == 2 * kept("adamw_torch_8bit", MATRIX)  # but torchao copies it


def test_large_paged_states_are_outside_the_allocator():
    assert kept("paged_adamw_32bit", (400, 250)) == 0
    assert kept("paged_adamw_32bit", (399, 250)) == 8 * 99_750
    assert kept("paged_adamw_8bit", (400, 250)) == 2 * 391 * 4 + 2 * 1024  # the maxima are not paged


def test_trainer_has_8_bit_optimizers_keep_embeddings_in_32_bits():
    assert kept("adamw_8bit", MATRIX, embedding=True) == 8 * N
    assert kept("adamw_torch", MATRIX, embedding=True) == 8 * N


@pytest.mark.parametrize(
    ("name", "plain", "decayed"),
    [
        ("adamw_torch", 1, 1),
        ("adam", 1, 1),
        ("radam", 1, 1),
        ("nadam", 1, 2),
        ("rmsprop", 1, 2),
        ("adagrad", 2, 2),
        ("adamax", 1, 1),
        ("sgd-momentum", 0, 1),
        ("lion", 1, 1),
        ("schedule_free_sgd", 0, 0),
        ("schedule_free_adamw", 1, 1),
        ("schedule_free_radam", 1, 1),
        ("adamw_torch_fused", 0, 0),
        ("adamw_8bit", 0, 0),
        ("stable_adamw", 0, 0),
    ],
)
def test_lists_as_large_as_the_group(name, plain, decayed):
    assert borrowed(name, (MATRIX, VECTOR)) == plain * 4 * (N + M)
    assert borrowed(name, (MATRIX, VECTOR), decayed=True) == decayed * 4 * (N + M)


def test_a_list_of_one_group_is_gone_before_the_next_unless_one_function_runs_over_both():
    assert borrowed("adamw_torch", (MATRIX,), (MATRIX,)) == 4 * N
    assert borrowed("schedule_free_adamw", (MATRIX,), (MATRIX,)) == 2 * 4 * N


@pytest.mark.parametrize("name", KEPT)
def test_a_group_without_parameters_borrows_nothing(name):
    assert borrowed(name, (), (MATRIX,), ()) == borrowed(name, (MATRIX,))


def test_the_first_steps_of_schedule_free_radam_are_plain_descent():
    ledger = played("schedule_free_radam", (MATRIX,))
    assert max(totals(ledger, "temporaries")[: ledger.first_event(ledger.steps[-1])]) == 0


def test_adafactor_borrows_a_few_copies_of_one_parameter():
    # the last parameter's update, the squares, and their sum with epsilon
    assert borrowed("adafactor", (MATRIX, MATRIX)) == 3 * 4 * N
    # and fp32 copies of the gradient and of the parameter
    assert borrowed("adafactor", (MATRIX, MATRIX), dtype=DType.bfloat16) == 5 * 4 * N


def test_any_precision_divides_the_root_out_of_place():
    assert borrowed("adamw_anyprecision", (MATRIX, VECTOR)) == 2 * 4 * N
    assert borrowed("adamw_anyprecision", (VECTOR, MATRIX)) == 4 * M + 2 * 4 * N


def test_grokadamw_brings_the_state_of_one_parameter_to_the_gpu():
    # three averages, the amplified gradient, and the root of one of them
    assert borrowed("grokadamw", (MATRIX,)) == 5 * 4 * N


def test_torchao_borrows_by_shape():
    assert borrowed("adamw_torch_8bit", ((64, 256),)) == 0  # a block is a row
    assert borrowed("adamw_torch_8bit", ((64, 3, 16, 16),)) == 0  # a block is a channel of a patch
    assert borrowed("adamw_torch_8bit", ((256, 64),)) == 0  # a block is four rows
    assert borrowed("adamw_torch_8bit", ((64, 192),)) == 2 * 4 * (64 * 192 + 48)
    assert borrowed("adamw_torch_8bit", ((64, 3, 32, 32),)) == 2 * 4 * (196_608 + 768)
    assert borrowed("adamw_torch_4bit", ((64, 256),)) == 2 * (4 + 8) * 16_384 + 2 * 4 * 64
    assert borrowed("adamw_torch_4bit", (VECTOR,)) == 0


def test_lion_takes_as_many_parameters_as_a_quarter_of_the_l2_cache_holds():
    two = ((2**11, 2**11), (2**11, 2**11))
    assert borrowed("lion", two, gpu=Gpu(l2_cache_bytes=60 * 2**20)) == 2 * 4 * 2**22  # so little that it is not cut
    assert borrowed("lion", two, gpu=Gpu(l2_cache_bytes=64 * 2**20)) == 4 * 2**22
    assert borrowed("lion", two, gpu=Gpu(l2_cache_bytes=128 * 2**20)) == 2 * 4 * 2**22
    assert borrowed("lion", two, dtype=DType.bfloat16) == 2 * 2**22  # an A100


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if row.refused])
def test_a_refusal_says_why_and_what_to_use(name):
    with pytest.raises(NotModelled, match=rf"optim '{name}' is not modelled: .*; use (\w+)") as caught:
        vitmem.estimate(**TINY, optim=name)
    alternative = str(caught.value).rpartition("use ")[2]
    assert not OPTIMIZERS[alternative].refused


def test_every_row_can_be_asked_for():
    assert set(CHOICES["optim"]) == set(OPTIMIZERS)


def test_every_value_of_trainers_optim_has_a_row():
    training_args = pytest.importorskip("transformers.training_args")
    assert {member.value for member in training_args.OptimizerNames} <= set(OPTIMIZERS)


def test_a_kernel_that_does_not_exist_is_the_users_mistake():
    with pytest.raises(InvalidRequest, match=r"rmsprop_bnb.*bfloat16.*--precision bf16"):
        vitmem.estimate(**TINY, optim="rmsprop_bnb", precision="pure-bf16")
    assert vitmem.estimate(**TINY, optim="rmsprop_bnb", precision="bf16").peak.tensor_bytes > 0


def test_an_estimate_says_whose_optimizer_it_is_and_what_it_leaves_out():
    estimate = vitmem.estimate(**TINY, optim="paged_adamw_8bit")
    assert "optimizer paged_adamw_8bit: bitsandbytes 0.50.2" in estimate.assumptions
    assert any("2 bytes for each element" in text and "managed" in text for text in estimate.not_modelled)
    assert not any("managed" in text for text in vitmem.estimate(**TINY, optim="adamw_8bit").not_modelled)


@pytest.mark.parametrize(("optim", "copies"), [("adagrad", 1), ("rmsprop", 0)])
def test_adagrad_has_state_before_the_first_step_of_all_that_it_is_handed(optim, copies):
    settings = TrainSettings.of(**TINY, optim=optim, loop="plain", freeze_layers=1)
    run = Played(*resolved(settings))
    ledger, parameters = run.ledger, run.step.scope.parameters.values()
    before = totals(ledger, "optimizer_state")[ledger.first_event(ledger.steps[0]) - 1]
    assert before == copies * sum(p.num_bytes for p in parameters)
