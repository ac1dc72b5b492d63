"""CUDA's autocast, and the operators that CUDA runs differently, for tensors of the meta device.

``torch.autocast("cuda")`` switches itself off without a GPU and never looks at meta tensors. So the state is kept by
the real ``torch.autocast("cpu")``, which leaves meta tensors alone too, is nested and left like any other, and is saved
and entered again by ``torch.utils.checkpoint``; this function mode reads that state and casts by CUDA's lists
(torch 2.14, ATen/autocast_mode.h).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .attention import SdpaChoice, scaled_dot_product_attention
from .autocast_lists import FP32, FP32_SET_OPT_DTYPE, LOWER_PRECISION, PROMOTE
from .cross_entropy import cross_entropy_loss
from .cudnn import batch_norm
from .rms_norm import fused_rms_norm
from .tracker import Tracker

__all__ = ["CudaSemantics"]

_SAME = {
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "__pow__": "pow",
    "__rpow__": "pow",
    "vector_norm": "linalg_vector_norm",
}
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class CudaSemantics(TorchFunctionMode):
    """Runs each torch function as CUDA would: casts, fused dropout, half-to-float softmax, attention kernel."""

    def __init__(self, tracker: Tracker, sdpa: SdpaChoice, *, cuda: bool = True) -> None:
        super().__init__()
        self._tracker = tracker
        self._sdpa = sdpa
        self._cuda = cuda
        self._weights: dict[Tensor, Tensor] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """The mode, with autocast's cache dropped whenever the outermost autocast context is left."""
        clear = torch.clear_autocast_cache

        def clear_both() -> None:
            clear()
            self._weights.clear()

        torch.clear_autocast_cache = clear_both
        try:
            with self:
                yield
        finally:
            torch.clear_autocast_cache = clear
            self._weights.clear()

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        body = _python_body(func)
        if body is not None:
            with self:
                return body(*args, **kwargs)
        name = _name(func)
        if self._cuda:
            if torch.is_autocast_enabled("cpu"):
                if name == "cross_entropy_loss":
                    with self:
                        return cross_entropy_loss(*args, **kwargs)
                args, kwargs = self._cast(name, args, kwargs)
            special = getattr(self, f"_run_{name}", None)
            if special is not None:
                return special(func, *args, **kwargs)
        if name == "linear":
            return _linear(func, *args, **kwargs)
        return func(*args, **kwargs)

    # casts

    def _cast(self, name: str, args: Any, kwargs: Any) -> Any:
        if name in LOWER_PRECISION:
            return _map((args, kwargs), self._lower)
        if name in FP32:
            return _map((args, kwargs), _to_fp32)
        if name in FP32_SET_OPT_DTYPE and isinstance(args[0], Tensor) and _eligible(args[0]):
            return args, _with_fp32_dtype(name, args, kwargs)
        if name in PROMOTE:
            widest = _widest((args, kwargs))
            return _map((args, kwargs), lambda t: t.to(widest) if widest and _eligible(t) else t)
        return args, kwargs

    def _lower(self, tensor: Tensor) -> Tensor:
        """``cached_cast``: one copy per fp32 leaf that needs a gradient, kept until the outermost context is left."""
        dtype = torch.get_autocast_dtype("cpu")
        if not _eligible(tensor) or tensor.dtype == dtype:
            return tensor
        if not _cacheable(tensor):
            return tensor.to(dtype)
        known = self._weights.get(tensor)
        if known is None:
            with self._tracker.labelled("autocast_weights"):
                known = tensor.to(dtype)
            self._weights[tensor] = known
        return known

    # operators that CUDA runs differently from meta

    def _run_dropout(self, func: Any, x: Tensor, p: float = 0.5, train: bool = True) -> Any:
        """CUDA fuses: the mask is one byte per element (ATen/native/Dropout.cpp, is_fused_kernel_acceptable)."""
        if train and 0 < p < 1 and x.numel() > 0:
            return torch.native_dropout(x, p, True)[0]
        return func(x, p, train)

    def _run_softmax(self, func: Any, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        """fp16 to fp32 is one kernel on CUDA; every other pair is a copy first (ATen/native/SoftMax.cpp)."""
        return torch.ops.aten._softmax(x, dim, True) if _half_to_float(x, dtype) else func(x, dim, dtype=dtype)

    def _run_log_softmax(self, func: Any, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        return torch.ops.aten._log_softmax(x, dim, True) if _half_to_float(x, dtype) else func(x, dim, dtype=dtype)

    def _run_rms_norm(self, func: Any, x: Tensor, shape: Any, weight: Tensor | None = None, eps: Any = None) -> Any:
        return fused_rms_norm(x, shape, weight)

    def _run_batch_norm(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        return batch_norm(*args, **kwargs)

    def _run___setitem__(self, func: Any, x: Tensor, index: Any, value: Any) -> Any:
        """A number stays on the host, where meta makes a scalar of it (torch/csrc/autograd/
        python_variable_indexing.cpp, THPVariable_setitem)."""
        return func(x, index, torch.tensor(value, dtype=x.dtype, device="cpu") if _is_number(value) else value)

    def _run_scaled_dot_product_attention(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        return scaled_dot_product_attention(self._sdpa, *args, **kwargs)


def _linear(func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A bias that is not fused is added in place to the product, unless a dispatch mode makes the tensors look like a
    subclass's (ATen/native/Linear.cpp)."""
    if bias is None or x.dim() < 3 or x.is_contiguous():
        fused: Tensor = func(x, weight, bias)
        return fused
    return torch.matmul(x, weight.t()).add_(bias)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _half_to_float(x: Tensor, dtype: torch.dtype | None) -> bool:
    return x.dtype == torch.float16 and dtype == torch.float32


def _with_fp32_dtype(name: str, args: Any, kwargs: Any) -> Any:
    positional = {"softmax": 2, "log_softmax": 2}.get(name)
    given = kwargs.get("dtype") is not None or (positional is not None and len(args) > positional)
    return kwargs if given else {**kwargs, "dtype": torch.float32}


def _cacheable(tensor: Tensor) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
    )


def _eligible(tensor: Tensor) -> bool:
    return tensor.device.type == "meta" and tensor.is_floating_point() and tensor.dtype != torch.float64


def _to_fp32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if _eligible(tensor) else tensor


def _widest(values: Any) -> torch.dtype | None:
    dtypes = [leaf.dtype for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor) and _eligible(leaf)]
    return torch.float32 if torch.float32 in dtypes else (dtypes[0] if dtypes else None)


def _map(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Arguments from the last to the first, as gcc evaluates ``F(cached_cast(args)...)``.

    The order of the casts is the order of their nodes: backward runs the input's cast before the weight's.
    """
    leaves, structure = pytree.tree_flatten(values)
    changed = [change(leaf) if isinstance(leaf, Tensor) else leaf for leaf in reversed(leaves)]
    return pytree.tree_unflatten(changed[::-1], structure)


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "").removeprefix("linalg_vector_norm_")
    return _SAME.get(name, name)


def _python_body(func: Any) -> Any:
    """A function of torch written in Python, without the checks that hand it to a function mode; else ``None``.

    Called with the mode active, its own calls of torch are seen again: otherwise everything inside
    ``F.multi_head_attention_forward`` or ``F.cross_entropy`` would run without autocast. A method that ends in
    ``super()``, such as ``Tensor.unflatten``, is not followed: the C method behind it would be handed back to it.
    """
    if not isinstance(func, types.FunctionType) or not any(check in func.__code__.co_names for check in _CHECKS):
        return None
    if not func.__module__.startswith("torch.") or "__class__" in func.__code__.co_freevars:
        return None
    namespace = {**func.__globals__, **dict.fromkeys(_CHECKS, _never)}
    body = types.FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


def _never(*args: object) -> bool:
    return False
