"""The operators a vision transformer is made of: what each allocates, saves, and borrows in its backward.

Every operator takes and returns shape-only tensors and mirrors the ATen function of the same name: the operator's
docstring says what autograd keeps (``tools/autograd/derivatives.yaml``) and which kernel workspace it takes.
"""

from ..engine.autocast import to
from .attention import scaled_dot_product_attention
from .conv import conv2d
from .linear import linear, matmul
from .loss import cross_entropy, label_smoothing_cross_entropy
from .norm import layer_norm, rms_norm
from .pointwise import add, div, gelu, mul, quick_gelu, relu, sigmoid, silu, tanh
from .random import bernoulli_scale, dropout, keep_random_tokens, rand_floor_scale
from .reduce import amax, mean, softmax, sum_
from .resample import interpolate
from .shape import (
    cat,
    chunk,
    contiguous,
    expand,
    flatten,
    gather,
    narrow,
    permute,
    reshape,
    select,
    split,
    stack,
    transpose,
    unbind,
    view,
)
from .window import pad_grid, roll, rows_of

__all__ = [
    "add",
    "amax",
    "bernoulli_scale",
    "cat",
    "chunk",
    "contiguous",
    "conv2d",
    "cross_entropy",
    "div",
    "dropout",
    "expand",
    "flatten",
    "gather",
    "gelu",
    "interpolate",
    "keep_random_tokens",
    "label_smoothing_cross_entropy",
    "layer_norm",
    "linear",
    "matmul",
    "mean",
    "mul",
    "narrow",
    "pad_grid",
    "permute",
    "quick_gelu",
    "rand_floor_scale",
    "relu",
    "reshape",
    "rms_norm",
    "roll",
    "rows_of",
    "scaled_dot_product_attention",
    "select",
    "sigmoid",
    "silu",
    "softmax",
    "split",
    "stack",
    "sum_",
    "tanh",
    "to",
    "transpose",
    "unbind",
    "view",
]
