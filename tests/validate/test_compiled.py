"""What torch.compile keeps for the backward pass: the record of it is what autograd packs, and what the page says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("timm")

import torch
from vitmem.settings import TrainSettings
from vitmem.validate import compiled
from vitmem.validate.build import build_model
from vitmem.validate.compiled import compile_as_the_loop

B, C, H, DEPTH, RES = 2, 48, 3, 2, 64
N = (RES // 16) ** 2 + 1
TINY = {"model": "vit_tiny_patch16_224", "depth": DEPTH, "dim": C, "heads": H, "res": RES, "bs": B, "loop": "plain"}


def compiled_on_the_cpu():
    settings = TrainSettings.of(**TINY, precision="fp32")
    model = build_model(settings, "cpu").model
    called, partition = compile_as_the_loop(settings, model)
    return model, called, partition


def images():
    return torch.zeros(B, 3, RES, RES)


@pytest.fixture(scope="module")
def planned():
    """inductor's joint graph and partition, run by torch's interpreter: no kernel is generated."""

    def interpreted(graph, inputs, **options):
        def run(arguments):
            return torch.fx.Interpreter(graph).boxed_run(arguments)

        run._boxed_call = True
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "compile_fx_inner", interpreted)
        _, called, partition = compiled_on_the_cpu()
        called(images())
        yield called, partition


def block_bytes():
    """docs/torch-compile.md, a block in fp32: two normalised inputs with one number per row, two layer norms' outputs,
    packed queries, keys and values, the attention's output with its log-sum-exp, and the MLP before and after GELU."""
    row = 4 * B * N
    return row * (C + 1) * 2 + row * C * 2 + row * 3 * C + row * C + row * H + row * 4 * C * 2


def test_a_vits_forward_keeps_what_the_page_lists(planned):
    _, partition = planned
    by_operator = {}
    for tensor in partition.tensors:
        by_operator.setdefault(tensor.operator, []).append(tensor.bytes)
    row = 4 * B * N
    assert by_operator["addmm"] == [row * 4 * C] * DEPTH
    assert by_operator["cat"] == [row * C]
    assert by_operator["div"] == [row] * (2 * DEPTH)
    first_input = row * C + 2 * row  # of the first layer norm: itself and its statistics
    first_less = row * (C + 1)
    last = row * (C + 1) + row * C  # the final norm: its normalised input, and its output for the class token
    everything = DEPTH * block_bytes() - first_less + first_input + last
    assert partition.num_bytes(of_weights=False) == everything
    assert partition.num_bytes(of_weights=True) == 0


def test_a_new_forward_starts_a_new_record(planned):
    called, partition = planned
    once = partition.num_bytes(of_weights=False)
    called(images())
    assert partition.num_bytes(of_weights=False) == 2 * once
    partition.forget()
    assert partition.tensors == []
    assert partition.num_compiled == 1


@pytest.mark.slow
def test_the_record_is_what_autograd_packs():
    """Real kernels of the CPU; inductor lays images and convolution weights out anew and saves the copies."""
    model, called, partition = compiled_on_the_cpu()
    x = images()
    called(x).sum().backward()
    partition.forget()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), x)}
    packed = {}

    def pack(tensor):
        packed[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = called(x)
    saved = sum(size for address, size in packed.items() if address not in own)
    assert saved == partition.num_bytes(of_weights=False) + partition.num_bytes(of_weights=True) > 0
    (images_again,) = [tensor for tensor in partition.tensors if tensor.shape == tuple(x.shape)]
    assert images_again.bytes == x.untyped_storage().nbytes()
    del out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_compiled_step_on_a_cuda_device():
    """As the page counts under autocast: a real loop, three steps, the third is recorded."""
    from vitmem.validate.cuda import measure

    measured = measure(TrainSettings.of(**TINY, precision="bf16", compile=True))
    graphs, rows = measured.compiled, B * N
    norm_input = 4 * rows * (C + 1)
    block = 2 * norm_input + 28 * rows * C + 4 * B * H * N + 24
    first = 4 * rows * (C + 2) - norm_input
    last = norm_input + 2 * B * C
    assert graphs.num_compiled == 1
    assert graphs.saved_activation_bytes == DEPTH * block + first + last + 2 * 3 * B * RES**2
    assert graphs.saved_weight_bytes == 2 * (DEPTH * 12 * C * C + 3 * 16 * 16 * C + 1000 * C)
    assert measured.allocated_bytes == max(measured.phases.values()) > graphs.saved_activation_bytes
