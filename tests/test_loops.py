"""What the loops add to a step: an EMA copy, clipping, softened labels, and what they refuse."""

from __future__ import annotations

import pytest
import vitmem
from vitmem.errors import InvalidRequest, NotModelled
from vitmem.kernels import Kernels
from vitmem.loops.ema import _chunks
from vitmem.pipeline import resolved
from vitmem.settings import TrainSettings
from vitmem.step import Step

TIMM, HF, MAE = "vit_tiny_patch16_224", "WinKawaks/vit-tiny-patch16-224", "facebook/vit-mae-base"
SWIN = "swin_tiny_patch4_window7_224"
LOOPS = ("trainer", "timm", "plain")


def estimate(**settings):
    return vitmem.estimate(**{"model": TIMM, "bs": 2, "depth": 1, **settings})


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("settings", [{}, {"precision": "pure-bf16"}, {"train": "linear-probe"}, {"freeze_layers": 1}])
def test_an_ema_copy_is_the_whole_model_once_more(loop, settings):
    without, with_it = estimate(loop=loop, **settings), estimate(loop=loop, ema=True, **settings)
    size = without.states.parameter_bytes
    assert with_it.states.optimizer_bytes - without.states.optimizer_bytes == size
    for phase in ("forward", "backward"):
        assert with_it.phases[phase].tensor_bytes - without.phases[phase].tensor_bytes == size
    assert with_it.states.parameter_bytes == size  # the copy trains nothing


def test_an_ema_copy_has_the_buffers_too():
    without, with_it = estimate(model=SWIN, depth=None), estimate(model=SWIN, depth=None, ema=True)
    copied = without.states.parameter_bytes + without.states.buffer_bytes
    assert without.states.buffer_bytes > 0
    assert with_it.states.optimizer_bytes - without.states.optimizer_bytes == copied


class Sized:
    def __init__(self, numel):
        self.numel = numel


@pytest.mark.parametrize(
    ("sizes", "chunks"),
    [
        ([3, 2**22 - 3, 1], [2**22, 1]),  # as many as fit
        ([1, 2**22 + 5, 7], [1, 2**22 + 5, 7]),  # one that is too large is alone
        ([], []),
    ],
)
def test_averages_are_rounded_in_chunks(sizes, chunks):
    assert list(_chunks([Sized(size) for size in sizes])) == chunks


def test_stochastic_rounding_borrows_eight_bytes_per_element():
    # after zero_grad nothing but the model lives; with keep, the step's peak is the rounding of one chunk in fp32
    # beside as many random integers
    kept = {"loop": "timm", "precision": "pure-bf16", "optim": "sgd", "zero_grad": "keep", "num_classes": 10}
    without, with_it = estimate(**kept), estimate(**kept, ema=True)
    numel = with_it.model.num_parameters
    assert numel < 2**22
    step = with_it.phases["optimizer_step"].tensor_bytes
    resting = step - 8 * numel
    # weight decay borrowed a copy of the largest group before, which is less
    assert without.phases["optimizer_step"].tensor_bytes + 2 * numel < step
    assert resting == sum(
        (2 * numel, 2 * numel, 2 * numel, with_it.at_tensor_peak["inputs"], 2 * 2 * 10, 2)  # model, grads, EMA; names
    )


def test_clipping_borrows_norms():
    settings = {"loop": "plain", "optim": "sgd", "precision": "fp32"}  # whose step borrows nothing
    unclipped, clipped = estimate(**settings), estimate(**settings, clip_grad=1.0)
    gradients = 2 + 2 + 12 + 2 + 2  # tokens, patches, one block, norm, head
    # the norm of every gradient, all of them side by side, and their norm
    borrowed = clipped.phases["optimizer_step"].tensor_bytes - unclipped.phases["optimizer_step"].tensor_bytes
    assert borrowed == 4 * gradients + 4 * gradients + 4
    assert "gradients clipped to 1" in clipped.assumptions
    assert "no gradient clipping" in unclipped.assumptions


def test_trainer_takes_the_norm_whether_it_clips_or_not():
    peaks = [estimate(clip_grad=norm).phases for norm in (None, 0, 1.0, 5)]
    assert peaks.count(peaks[0]) == 4
    assert estimate(clip_grad=0).request["clip_grad"] == 0
    assert any("takes their norm all the same" in line for line in estimate(clip_grad=0).assumptions)


@pytest.mark.parametrize(
    ("loop", "clip", "smoothing"), [("trainer", 1.0, 0.0), ("timm", 0.0, 0.1), ("plain", 0.0, 0.0)]
)
def test_what_is_left_open_is_the_loops_own(loop, clip, smoothing):
    request = estimate(loop=loop).request
    assert (request["clip_grad"], request["label_smoothing"], request["mixup"]) == (clip, smoothing, False)


def test_a_model_without_labels_smooths_none():
    assert estimate(model=MAE, loop="timm", depth=None, bs=1).request["label_smoothing"] == 0


@pytest.mark.parametrize("loop", ["timm", "plain"])
def test_mixed_targets_lie_on_the_gpu_in_fp32(loop):
    plain, mixed = estimate(loop=loop), estimate(loop=loop, mixup=True)
    batches = 2 if loop == "timm" else 1  # the loader holds two
    assert mixed.at_peak["inputs"] - plain.at_peak["inputs"] == batches * (2 * 1000 * 4 - 2 * 8)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"mixup": True}, NotModelled, "compute_loss_func .* use --loop timm or plain"),
        ({"mixup": True, "loop": "timm", "bs": 3}, InvalidRequest, "even batch; use --bs 4, not 3"),
        ({"mixup": True, "loop": "plain", "model": MAE, "depth": None}, InvalidRequest, "no labels for --mixup"),
        ({"label_smoothing": 0.1, "model": MAE, "depth": None}, InvalidRequest, "no labels for --label-smoothing"),
        ({"label_smoothing": 1.0}, InvalidRequest, r"a rate in \[0, 1\)"),
        ({"label_smoothing": "much"}, InvalidRequest, r"a rate in \[0, 1\)"),
        ({"clip_grad": -1}, InvalidRequest, "must be a norm, or 0"),
        ({"clip_grad": float("inf")}, InvalidRequest, "must be a norm, or 0"),
        ({"clip_grad": True}, InvalidRequest, "must be a norm, or 0"),
        ({"mixup": 0.8}, InvalidRequest, "True or False"),
    ],
)
def test_what_is_refused(settings, error, message):
    with pytest.raises(error, match=message):
        estimate(**settings)


def test_buffers_of_the_state_dict_are_known():
    settings = TrainSettings.of("xcit_nano_12_p16_224", bs=1)
    chosen, settings = resolved(settings)
    scope = Step(chosen, settings, Kernels()).scope
    names = {path.rpartition(".")[2] for path in scope.persistent}
    assert names == {"running_mean", "running_var", "num_batches_tracked"}


def test_batches_that_timm_mixes_are_solved_in_pairs():
    solution = vitmem.solve("bs", TIMM, loop="timm", mixup=True, depth=1, memory="2GiB")
    assert solution.value % 2 == 0
    assert solution.next.request["bs"] == solution.value + 2


def test_the_recipe_of_a_trainers_arguments():
    settings = TrainSettings.of(training_args={"output_dir": "", "max_grad_norm": 0.5, "label_smoothing_factor": 0.1})
    assert (settings.clip_grad, settings.label_smoothing) == (0.5, 0.1)
