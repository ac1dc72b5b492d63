"""Matrix products: ``F.linear`` and ``matmul``, on cuBLAS."""

from __future__ import annotations

from math import prod

from ..engine.autocast import cast_to_lower
from ..engine.autograd import Saved, record
from ..engine.tensor import Tensor
from ..errors import InvalidRequest
from ..units import DType
from .shape import expand, reshape, transpose, view

__all__ = ["count_attention_flops", "linear", "matmul", "refuse_mixed"]

Grads = list["Tensor | None"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``: x [..., K], weight [N, K], bias [N] -> [..., N].

    Autocast casts bias, weight and input, in that order (C++ evaluates the arguments from the last to the first).
    With a bias and a dense input it is ``addmm`` on the flattened input, else ``matmul`` and an in-place add
    (aten/src/ATen/native/Linear.cpp).
    """
    lower_bias = None if bias is None else cast_to_lower(bias)
    lower_weight, lower_x = cast_to_lower(weight), cast_to_lower(x)
    columns = transpose(lower_weight, 0, 1)
    if lower_bias is None:
        return _matmul(lower_x, columns)
    if len(x.shape) == 2:
        return _addmm(lower_bias, lower_x, columns)
    if not lower_x.is_contiguous:
        return _add_bias_(_matmul(lower_x, columns), lower_bias)
    rows = reshape(lower_x, prod(x.shape[:-1]), x.shape[-1])
    return view(_addmm(lower_bias, rows, columns), *x.shape[:-1], weight.shape[0])


def _product(a: Tensor, b: Tensor, *, adds_bias: bool = False) -> Tensor:
    """``mm`` or ``bmm`` outside the graph: one new row-major tensor, and copies of operands that cuBLAS cannot read.

    cuBLASLt adds a bias in the same call. Raises ``InvalidRequest`` for operands of two types, as torch does.
    """
    if a.dtype is not b.dtype:
        refuse_mixed(a, b.dtype)
    run = a.run
    out = Tensor.empty(run, (*a.shape[:-1], b.shape[-1]), a.dtype)
    copies = run.workspace(*[x.num_bytes for x in (a, b) if not _is_readable(x)])
    run.use_cublas()
    if adds_bias:
        copies += run.use_cublas_lt()
    run.count_flops(out.storage, 2 * out.numel * a.shape[-1], a.dtype)
    del copies
    return out


def refuse_mixed(a: Tensor, other: DType) -> None:
    """Two types meet where an engine has cast the parameters and not the buffers."""
    lower = "fp16" if DType.float16 in {a.dtype, other} else "bf16"
    raise InvalidRequest(
        f"torch has no kernel for {a.dtype.label} with {other.label}, as {a.run.layer} asks here: DeepSpeed casts "
        f'weights and leaves buffers in fp32; "data_types": {{"buffer_dtype": "{lower}"}} in the DeepSpeed file casts '
        "both, --precision fp32 needs no cast"
    )


def _is_readable(x: Tensor) -> bool:
    """Rows or columns one after another, a whole one apart (prepare_matrix_for_cublas, aten/src/ATen/native/cuda)."""
    rows, columns = x.shape[-2:]
    row_step, column_step = x.strides[-2:]
    return (column_step == 1 and row_step >= max(1, columns)) or (row_step == 1 and column_step >= max(1, rows))


def _swapped(x: Tensor) -> Tensor:
    return x.alias((*x.shape[:-2], x.shape[-1], x.shape[-2]), (*x.strides[:-2], x.strides[-1], x.strides[-2]))


def _grad_of_b(a: Tensor, grad: Tensor, b_is_column_major: bool) -> Tensor:
    """The gradient of ``b`` in ``a @ b`` (mm_mat2_backward).

    That of a column-major ``b`` is column-major too, so that a weight's gradient has the weight's layout.
    """
    if b_is_column_major:
        return _swapped(_product(_swapped(grad), a))
    return _product(_swapped(a), grad)


def _grad_of_a(grad: Tensor, b: Tensor, a_is_column_major: bool) -> Tensor:
    """The gradient of ``a`` in ``a @ b`` (mm_mat1_backward): laid out like ``a`` as well."""
    if a_is_column_major:
        return _swapped(_product(b, _swapped(grad)))
    return _product(grad, _swapped(b))


def _is_column_major(x: Tensor) -> bool:
    return len(x.shape) == 2 and x.strides == (1, x.shape[0])


def _matrix_product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """``addmm``, ``mm`` and ``bmm``: each operand is saved only for the other's gradient."""
    has_bias = bias is not None
    if bias is not None and bias.dtype is not a.dtype:
        refuse_mixed(a, bias.dtype)
    out = _product(a, b, adds_bias=has_bias)
    keep_a, keep_b = b.requires_grad, a.requires_grad
    a_by_column, b_by_column = _is_column_major(a), _is_column_major(b)
    saved = (*((a,) if keep_a else ()), *((b,) if keep_b else ()))

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        if has_bias:  # addmm makes a's gradient first, mm and bmm b's
            grad_a = _grad_of_a(grad, saved[-1], a_by_column) if keep_b else None
            return grad_a, _grad_of_b(saved[0], grad, b_by_column) if keep_a else None, grad
        grad_b = _grad_of_b(saved[0], grad, b_by_column) if keep_a else None
        return _grad_of_a(grad, saved[-1], a_by_column) if keep_b else None, grad_b, None

    return record(out, (a, b, bias), backward, saved)


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Bias in the cuBLASLt epilogue: no copy; its gradient is a column sum made after both products."""
    return _matrix_product(a, b, bias)


def _add_bias_(x: Tensor, bias: Tensor) -> Tensor:
    return record(x.alias(x.shape, x.strides), (x, bias), lambda saved, grads: (grads[0], grads[0]))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul``: [..., M, K] @ [K, N] folds the batch into rows; two batches go through ``bmm``.

    A batch that the layout cannot fold (heads behind a transpose) is copied first, and the copy is what is saved; with
    a matrix [K, N] that wants no gradient it is not copied, and ``bmm`` repeats the matrix instead
    (aten/src/ATen/native/LinearAlgebra.cpp, ``_matmul_impl`` and ``should_fold``).
    """
    lower_b, lower_a = cast_to_lower(b), cast_to_lower(a)
    return _matmul(lower_a, lower_b)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    if len(a.shape) == 2:
        return _matrix_product(a, b, None)
    batch = a.shape[:-2]
    if len(b.shape) == 2:
        if b.requires_grad or _folds(a):
            rows = reshape(a, prod(a.shape[:-1]), a.shape[-1])
            return view(_matrix_product(rows, b, None), *a.shape[:-1], b.shape[-1])
        b = expand(view(b, *(1,) * len(batch), *b.shape), *batch, -1, -1)
    flat_a = reshape(a, prod(batch), *a.shape[-2:])
    flat_b = reshape(b, prod(batch), *b.shape[-2:])
    return view(_matrix_product(flat_a, flat_b, None), *batch, a.shape[-2], b.shape[-1])


def _folds(x: Tensor) -> bool:
    """Whether all dimensions but the last are one in memory."""
    pairs = range(len(x.shape) - 2)
    return all(x.strides[i] == x.strides[i + 1] * x.shape[i + 1] for i in pairs)


def count_attention_flops(made: Tensor, q: Tensor, k: Tensor, products: int) -> None:
    """A kernel's products of [N, D] and [D, N]: scores and result forward; backward the scores once more and four for
    the gradients."""
    made.run.count_flops(made.storage, 2 * products * q.numel * k.shape[2], q.dtype)
