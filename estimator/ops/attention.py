"""Scaled dot-product attention and the CUDA kernels behind it."""

from __future__ import annotations

from ..engine.autocast import cast_to_lower
from ..engine.autograd import Saved, record
from ..engine.run import Storage
from ..engine.tensor import Shape, Tensor, dense_strides_like
from ..units import DType
from .flash1 import flash1
from .linear import count_attention_flops, matmul, refuse_mixed
from .pointwise import mul
from .random import dropout
from .reduce import softmax
from .shape import expand, narrow, transpose

__all__ = ["scaled_dot_product_attention"]

Grads = list["Tensor | None"]


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, rate: float = 0.0, mask: Tensor | None = None
) -> Tensor:
    """``F.scaled_dot_product_attention``: q, k, v [B, H, N, D] and an additive mask [B or 1, H, N, N] -> [B, H, N, D].

    Which kernel runs is :meth:`vitmem.kernels.Kernels.attention`; each keeps and borrows something else.
    """
    rate = rate if q.run.training else 0.0
    lower_mask = None if mask is None else cast_to_lower(mask)
    lower_v, lower_k, lower_q = cast_to_lower(v), cast_to_lower(k), cast_to_lower(q)
    for other in (lower_k, lower_v):
        if other.dtype is not lower_q.dtype:
            refuse_mixed(lower_q, other.dtype)
    kernel = q.run.kernels.attention(
        lower_q.dtype,
        lower_q.shape[-1],
        rate,
        mask=None if lower_mask is None else lower_mask.requires_grad,
        trained=_trained(lower_q, lower_k, lower_v),
        dense=lower_q.strides[-1] == lower_k.strides[-1] == lower_v.strides[-1] == 1,
    )
    q.run.took_attention(kernel)
    if kernel == "flash" and not q.run.kernels.torch.has("flash_attention_2"):
        return flash1(lower_q, lower_k, lower_v)
    return _KERNELS[kernel](lower_q, lower_k, lower_v, rate, lower_mask)


def _trained(*tensors: Tensor | None) -> bool:
    """Whether a gradient of one of these is wanted."""
    return any(x is not None and x.run.grad_enabled and x.requires_grad for x in tensors)


def _token_major(x: Tensor) -> Tensor:
    """[B, H, N, D] made as [B, N, H, D] in memory: the layout in which every fused kernel writes its result."""
    _, heads, tokens, dim = x.shape
    return Tensor.empty(x.run, x.shape, x.dtype, strides=(tokens * heads * dim, dim, heads * dim, 1))


def _empty_like_bnhd(x: Tensor) -> Tensor:
    swapped = (x.shape[0], x.shape[2], x.shape[1], x.shape[3])
    strides = dense_strides_like(swapped, (x.strides[0], x.strides[2], x.strides[1], x.strides[3]))
    return Tensor.empty(x.run, x.shape, x.dtype, strides=(strides[0], strides[2], strides[1], strides[3]))


def _flash(q: Tensor, k: Tensor, v: Tensor, rate: float, mask: Tensor | None) -> Tensor:
    """FlashAttention-2 (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, torch 2.14).

    Saves q, k, v, the output, an unpadded fp32 log-sum-exp [B, H, N], and the random state: two uint64 and one more.
    A head size that is no multiple of 8 is padded first, and the padded copies are what is saved.
    Backward borrows an fp32 accumulator for dq and the row sums, both over tokens rounded up to 128.
    """
    assert mask is None
    dim = q.shape[-1]
    if dim % 8 == 0:
        return _flash_kernel(q, k, v, rate)
    out = _flash_kernel(_padded(q, -dim % 8), _padded(k, -dim % 8), _padded(v, -dim % 8), rate)
    return narrow(out, 3, 0, dim)


def _padded(x: Tensor, extra: int) -> Tensor:
    """``constant_pad_nd`` of the last dimension: a copy; its gradient is a slice, a view."""
    out = Tensor.empty(x.run, (*x.shape[:-1], x.shape[-1] + extra), x.dtype)
    shape = x.shape

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        assert grad is not None
        return (Tensor.empty(grad.run, shape, grad.dtype, strides=dense_strides_like(shape, grad.strides)),)

    return record(out, (x,), backward)


def _flash_kernel(q: Tensor, k: Tensor, v: Tensor, rate: float) -> Tensor:
    run = q.run
    batch, heads, tokens, dim = q.shape
    out = _empty_like_bnhd(q)
    lse = Tensor.empty(run, (batch, heads, tokens), DType.float32)
    splits = run.workspace(*run.kernels.flash_forward(batch, heads, tokens, k.shape[2], dim, rate))
    on_gpu = run.kernels.torch.has("attention_state_on_gpu")
    replaced = run.workspace(16 if rate > 0 and on_gpu else 0)  # with dropout the state is made anew
    rng_state = Tensor.empty(run, (2,) if on_gpu else (0,), DType.int64)
    unused = Tensor.empty(run, () if on_gpu else (0,), DType.int64)
    del splits, replaced
    count_attention_flops(out, q, k, 2)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        copies = [_token_major_copy(x) for x in (grads[0], saved[3])]
        grads_qkv = tuple(_empty_like_bnhd(x) for x in saved[:3])
        count_attention_flops(grads_qkv[0], saved[0], saved[1], 5)
        workspaces = run.workspace(*run.kernels.flash_backward(batch, heads, tokens, dim))
        del copies, workspaces
        return grads_qkv

    return record(out, (q, k, v), backward, (q, k, v, out, lse, rng_state, unused))


def _efficient(q: Tensor, k: Tensor, v: Tensor, rate: float, mask: Tensor | None) -> Tensor:
    """CUTLASS memory-efficient attention (aten/src/ATen/native/transformers/cuda/attention.cu, torch 2.14).

    Saves q, k, v, the mask, the output, an fp32 log-sum-exp [B, H, N rounded up to 32] (made where a gradient is
    wanted, the mask's included), and seed and offset (8 bytes each; with dropout the host keeps them). Backward makes
    the mask's gradient for every window and head, with rows rounded up to 16, and borrows the kernel's accumulators and
    the row sums of output times gradient.
    """
    run = q.run
    batch, heads, tokens, dim = q.shape
    bias = None if mask is None else _aligned_mask(mask, (batch, heads, tokens, k.shape[2]))
    scalar = () if rate == 0 and run.kernels.torch.has("attention_state_on_gpu") else (0,)  # else the host keeps them
    seed = Tensor.empty(run, scalar, DType.int64)
    offset = Tensor.empty(run, scalar, DType.int64)
    out = _token_major(q)
    padded_rows = -(-tokens // 32) * 32 if _trained(q, k, v, bias) else 0
    lse = Tensor.empty(run, (batch, heads, padded_rows), DType.float32)
    accumulator = run.workspace(4 * out.numel if dim > 128 and q.dtype.size == 2 else 0)  # kMaxK exceeded
    del accumulator
    count_attention_flops(out, q, k, 2)
    wants_bias = bias is not None and bias.requires_grad

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        grad_q, grad_k, grad_v = (_token_major(x) for x in saved[:3])
        count_attention_flops(grad_q, saved[0], saved[1], 5)
        grad_bias = _mask_gradient(saved[7]) if wants_bias else None
        row_sums = _row_sums(saved[3])
        accumulators = run.workspace(
            run.kernels.efficient_backward(batch, heads, tokens, saved[1].shape[2], dim, saved[0].dtype, rate)
        )
        del row_sums, accumulators
        return grad_q, grad_k, grad_v, grad_bias

    saved = (q, k, v, out, lse, seed, offset)
    return record(out, (q, k, v, bias), backward, saved if bias is None else (*saved, bias))


def _aligned_mask(mask: Tensor, shape: Shape) -> Tensor:
    """``preprocess_mask``: a mask whose strides are no multiples of 8 elements is padded by 1 to 8 columns (a copy) and
    sliced back, then expanded."""
    keys = mask.shape[-1]
    if mask.strides[-1] != 1 or any(stride % 8 for stride in mask.strides[:-1]):
        mask = narrow(_padded(mask, 8 - keys % 8), 3, 0, keys)
    return expand(mask, *shape) if mask.shape != shape else mask


def _mask_gradient(mask: Tensor) -> Tensor:
    *rows, keys = mask.shape
    whole = Tensor.empty(mask.run, (*rows, -(-keys // 16) * 16), mask.dtype)
    return whole.alias(mask.shape, whole.strides).detach()  # sliced inside the kernel: no view for autograd


def _token_major_copy(x: Tensor | None) -> list[Storage]:
    """What the flash kernel borrows for a [B, H, N, D] that is not row-major as [B, N, H, D]."""
    assert x is not None
    swapped = x.alias(
        (x.shape[0], x.shape[2], x.shape[1], x.shape[3]), (x.strides[0], x.strides[2], x.strides[1], x.strides[3])
    )
    return [] if swapped.is_contiguous else x.run.workspace(x.num_bytes)


def _row_sums(out: Tensor) -> list[Storage]:
    """delta, fp32 [B, H, N]: most 16-bit kernels write it themselves, else output and gradient, both in fp32, are
    multiplied first."""
    batch, heads, tokens, dim = out.shape
    delta_bytes, product_bytes = 4 * batch * heads * tokens, 4 * out.numel
    if out.run.kernels.efficient_sums_rows(out.dtype, dim):
        return out.run.workspace(delta_bytes)
    copies = out.run.workspace(*(product_bytes,) * 2) if out.dtype.size == 2 else []
    product = out.run.workspace(product_bytes)
    delta = out.run.workspace(delta_bytes)
    contiguous_delta = out.run.workspace(delta_bytes)
    del copies, product, delta
    return contiguous_delta


def _cudnn(q: Tensor, k: Tensor, v: Tensor, rate: float, mask: Tensor | None) -> Tensor:
    """cuDNN attention (aten/src/ATen/native/cudnn/MHA.cpp, torch 2.14): as flash, with seed and offset of their own, a
    log-sum-exp [B, H, N, 1] where a gradient is wanted, and a mask as it is."""
    run = q.run
    batch, heads, tokens, dim = q.shape
    seed = Tensor.empty(run, (), DType.int64)
    offset = Tensor.empty(run, (), DType.int64)
    out = _empty_like_bnhd(q)
    lse = Tensor.empty(run, (batch, heads, tokens if _trained(q, k, v) else 0, 1), DType.float32)
    count_attention_flops(out, q, k, 2)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        grads_qkv = tuple(_empty_like_bnhd(x) for x in saved[:3])
        count_attention_flops(grads_qkv[0], saved[0], saved[1], 5)
        workspace = run.workspace(run.kernels.cudnn_attention_backward(batch, heads, tokens, dim))
        del workspace
        return grads_qkv

    saved = (q, k, v, out, lse, seed, offset)
    return record(out, (q, k, v), backward, saved if mask is None else (*saved, mask))


def _math(q: Tensor, k: Tensor, v: Tensor, rate: float, mask: Tensor | None) -> Tensor:
    """The composite fallback (aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math).

    q and k are both scaled; a mask is added in place. Since torch 2.5 16-bit inputs are computed in fp32, and the
    softmax guards rows that are all masked.
    """
    from ..engine.autocast import to

    source, in_fp32 = q.dtype, q.run.kernels.torch.has("math_attention_in_fp32")
    autocast, q.run.autocast = q.run.autocast, None
    wide = DType.float32 if source.size == 2 and in_fp32 else source
    q, k, v = to(q, wide), to(k, wide), to(v, wide)
    scaled = mul(q, 1.0)
    scores = matmul(scaled, mul(transpose(k, 2, 3), 1.0))
    if mask is not None:
        scores = _add_(scores, mask)
    scores = _safe_softmax(scores) if in_fp32 else softmax(scores)
    scores = dropout(scores, rate)
    unused = to(scores, source)  # returned too, and made first: C++ evaluates the arguments from the last to the first
    out = to(matmul(scores, v), source)
    del unused
    q.run.autocast = autocast
    return out


def _add_(x: Tensor, mask: Tensor) -> Tensor:
    return record(x.alias(x.shape, x.strides), (x, mask), lambda saved, grads: (grads[0], grads[0]))


def _safe_softmax(x: Tensor) -> Tensor:
    """``_safe_softmax``, one operator: the plain softmax, whose rows that were minus infinity throughout are zeroed in
    place; what finds them (a byte per score, per row, a scalar) is borrowed."""
    out = softmax(x)
    borrowed = x.run.scratch(x.numel, x.numel // x.shape[-1], 4)
    del borrowed
    return out


def _cpu_flash(q: Tensor, k: Tensor, v: Tensor, rate: float, mask: Tensor | None) -> Tensor:
    """The CPU's flash attention (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, torch 2.14): saves q, k, v, the
    mask, the output, laid out as q is, and an fp32 log-sum-exp [B, H, N]; gradients are made as [B, N, H, D]. Each
    thread's tiles, of kilobytes, are not counted."""
    run = q.run
    batch, heads, tokens, _ = q.shape
    out = _empty_like_bnhd(q)
    lse = Tensor.empty(run, (batch, heads, tokens), DType.float32)

    def backward(saved: Saved, grads: Grads) -> tuple[Tensor | None, ...]:
        return tuple(_token_major(x) for x in saved[:3])

    saved = (q, k, v, out, lse)
    return record(out, (q, k, v), backward, saved if mask is None else (*saved, mask))


_KERNELS = {"cpu-flash": _cpu_flash, "flash": _flash, "efficient": _efficient, "cudnn": _cudnn, "math": _math}
