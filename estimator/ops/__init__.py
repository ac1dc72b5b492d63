"""The operators a vision transformer is made of: what each allocates, saves, and borrows in its backward.

Every operator takes and returns shape-only tensors and mirrors the ATen function of the same name: the operator's
docstring says what autograd keeps (``tools/autograd/derivatives.yaml``) and which kernel workspace it takes.
"""

from ..engine.autocast import to
from .attention import scaled_dot_product_attention
from .batch_norm import batch_norm
from .conv import conv2d
from .cosine import clamp, exp, normalize, relu_
from .linear import linear, matmul
from .lookup import argsort, embedding
from .loss import cross_entropy, label_smoothing_cross_entropy
from .norm import layer_norm, rms_norm
from .pointwise import add, add_to_view_, div, div_, gelu, mul, power, quick_gelu, relu, sigmoid, silu, tanh
from .pool import adaptive_avg_pool2d
from .random import bernoulli_scale, dropout, gather_tokens, keep_random_tokens, rand_floor_scale, random_tokens
from .reduce import amax, mean, softmax, sum_, sum_all
from .resample import interpolate
from .rotary import cos, neg, repeat_interleave, sin
from .shape import (
    cat,
    chunk,
    contiguous,
    expand,
    flatten,
    gather,
    narrow,
    permute,
    repeat,
    reshape,
    select,
    split,
    stack,
    transpose,
    unbind,
    unsqueeze,
    view,
)
from .shift import pad_image, shift_mask
from .shifted_windows import clone_with_zeros, window_mask
from .soft_loss import dense_cross_entropy, label_smoother, smoothed_cross_entropy, soft_target_cross_entropy
from .window import pad_grid, pad_start, roll, rows_of, rows_of_host_index

__all__ = [
    "adaptive_avg_pool2d",
    "add",
    "add_to_view_",
    "amax",
    "argsort",
    "batch_norm",
    "bernoulli_scale",
    "cat",
    "chunk",
    "clamp",
    "clone_with_zeros",
    "contiguous",
    "conv2d",
    "cos",
    "cross_entropy",
    "dense_cross_entropy",
    "div",
    "div_",
    "dropout",
    "embedding",
    "exp",
    "expand",
    "flatten",
    "gather",
    "gather_tokens",
    "gelu",
    "interpolate",
    "keep_random_tokens",
    "label_smoother",
    "label_smoothing_cross_entropy",
    "layer_norm",
    "linear",
    "matmul",
    "mean",
    "mul",
    "narrow",
    "neg",
    "normalize",
    "pad_grid",
    "pad_image",
    "pad_start",
    "permute",
    "power",
    "quick_gelu",
    "rand_floor_scale",
    "random_tokens",
    "relu",
    "relu_",
    "repeat",
    "repeat_interleave",
    "reshape",
    "rms_norm",
    "roll",
    "rows_of",
    "rows_of_host_index",
    "scaled_dot_product_attention",
    "select",
    "shift_mask",
    "sigmoid",
    "silu",
    "sin",
    "smoothed_cross_entropy",
    "soft_target_cross_entropy",
    "softmax",
    "split",
    "stack",
    "sum_",
    "sum_all",
    "tanh",
    "to",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
    "window_mask",
]
