"""CUDA's autocast lists by the names that Python's functions have (torch 2.14, ATen/autocast_mode.h)."""

from __future__ import annotations

__all__ = ["FP32", "FP32_SET_OPT_DTYPE", "LOWER_PRECISION", "PROMOTE"]

#: Run in the autocast type; weights come from the cache.
LOWER_PRECISION = frozenset(
    {
        "addbmm",
        "addmm",
        "addmv",
        "addr",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "einsum",
        "linalg_multi_dot",
        "linalg_vecdot",
        "linear",
        "matmul",
        "mm",
        "multi_dot",
        "mv",
        "prelu",
        "scaled_dot_product_attention",
        "vecdot",
    }
)

#: Run in fp32 on a copy of their inputs.
FP32 = frozenset(
    {
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "acos",
        "asin",
        "binary_cross_entropy_with_logits",
        "cdist",
        "cosh",
        "cosine_embedding_loss",
        "cosine_similarity",
        "dist",
        "erfinv",
        "exp",
        "expm1",
        "group_norm",
        "hinge_embedding_loss",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "layer_norm",
        "log",
        "log10",
        "log1p",
        "log2",
        "logsumexp",
        "margin_ranking_loss",
        "mse_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "native_layer_norm",
        "nll_loss",
        "nll_loss2d",
        "nll_loss_nd",
        "pdist",
        "poisson_nll_loss",
        "pow",
        "reciprocal",
        "renorm",
        "rms_norm",
        "rsqrt",
        "sinh",
        "smooth_l1_loss",
        "soft_margin_loss",
        "softplus",
        "tan",
        "triplet_margin_loss",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_trilinear3d",
    }
)

#: Asked for an fp32 result unless the caller names a type: no copy of the input by autocast.
FP32_SET_OPT_DTYPE = frozenset(
    {
        "cumprod",
        "cumsum",
        "linalg_matrix_norm",
        "linalg_vector_norm",
        "log_softmax",
        "norm",
        "prod",
        "softmax",
        "sum",
    }
)

#: Run in the widest type among the inputs.
PROMOTE = frozenset(
    {
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "grid_sampler",
        "index_put",
        "scatter_add",
        "tensordot",
        "vdot",
    }
)
