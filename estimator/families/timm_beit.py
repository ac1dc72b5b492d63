"""timm ``Beit`` (timm 1.0.31, models/beit.py): BEiT and BEiT v2.

Shapes: B images, N tokens with the class token, C width, H heads.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import NoFamily
from ..settings import TrainSettings
from ..units import DType
from ._plan import Plan, apply_overrides, linear_rates
from ._timm_config import OVERRIDES, arguments, resolved, with_sizes
from ._timm_layers import MLPS, NORMS, BlockConfig, PatchEmbed
from ._timm_rel_pos import Pair, check_sizes
from .nn import Dropout, Linear, drop_path

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The constructor's arguments with its defaults; sizes are (height, width) in pixels."""

    img_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    in_chans: int = 3
    num_classes: int = 1000
    global_pool: str = "avg"
    embed_dim: int = 768
    depth: int = 12
    num_heads: int = 12
    qkv_bias: bool = True
    mlp_ratio: float = 4.0
    swiglu_mlp: bool = False
    scale_mlp: bool = False
    drop_rate: float = 0.0
    pos_drop_rate: float = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_layer: str | None = None
    init_values: float | None = None
    use_abs_pos_emb: bool = True
    use_rel_pos_bias: bool = False
    use_shared_rel_pos_bias: bool = False
    use_fc_norm: bool | None = None
    fused_attn: bool = True

    @property
    def grid(self) -> Pair:
        """Patches along height and width."""
        return self.img_size[0] // self.patch_size[0], self.img_size[1] // self.patch_size[1]

    def mlp(self) -> BlockConfig:
        """What timm's shared MLPs read; the gated one keeps its own SiLU."""
        return BlockConfig(
            dim=self.embed_dim,
            num_heads=self.num_heads,
            mlp_ratio=self.mlp_ratio,
            qkv_bias=self.qkv_bias,
            qk_norm=False,
            scale_attn_norm=False,
            scale_mlp_norm=self.scale_mlp,
            proj_bias=True,
            proj_drop=self.proj_drop_rate,
            attn_drop=self.attn_drop_rate,
            init_values=self.init_values,
            drop_path=0.0,
            norm_layer=self.norm_layer,
            act_layer="silu" if self.swiglu_mlp else "gelu",
            mlp_layer="SwiGLU" if self.swiglu_mlp else "Mlp",
            fused_attn=self.fused_attn,
        )


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``timm.create_model(name, img_size=..., ...)`` builds; raises where timm would."""
    config = apply_overrides(Config(**arguments(Config, model)), settings, OVERRIDES)
    config = dataclasses.replace(with_sizes(config, settings), fused_attn=settings.attn in {"auto", "sdpa"})
    _check(model.name, config, settings)
    return Plan(
        model=model,
        build=partial(Beit, config=config),
        image_size=config.img_size,
        patch_size=config.patch_size,
        num_tokens=1 + math.prod(config.grid),
        blocks=tuple(f"blocks.{i}" for i in range(config.depth)),
        head=("head",),
        stem=("model", "patch_embed", "pos_drop", "rel_pos_bias"),
        attn="sdpa" if config.fused_attn else "eager",
        resolved=resolved(config),
    )


def _check(name: str, config: Config, settings: TrainSettings) -> None:
    check_sizes(
        name,
        settings,
        dim=config.embed_dim,
        heads=config.num_heads,
        img_size=config.img_size,
        patch_size=config.patch_size,
    )
    if config.global_pool not in {"avg", "token"} or config.norm_layer not in NORMS:
        raise NoFamily(f"{name}: pooling {config.global_pool!r} with {config.norm_layer} is not modelled")


class _Table(Module):
    """A bias per relative position, and one for each kind of pair with the class token."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        height, width = config.grid
        self.tokens = 1 + height * width
        offsets = (2 * height - 1) * (2 * width - 1) + 3
        self.relative_position_bias_table = scope.parameter("relative_position_bias_table", offsets, config.num_heads)
        self.index = scope.buffer("relative_position_index", self.tokens, self.tokens, dtype=DType.int64)

    def forward(self) -> Tensor:
        """[H, N, N]."""
        rows = ops.rows_of(self.relative_position_bias_table, ops.view(self.index, -1))
        return ops.contiguous(ops.permute(ops.view(rows, self.tokens, self.tokens, -1), 2, 0, 1))


class Attention(Module):
    """Packed qkv whose bias is made of two parameters and a buffer of zeros for the keys."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        dim = config.embed_dim
        self.config, self.num_heads = config, config.num_heads
        self.q_bias = scope.parameter("q_bias", dim) if config.qkv_bias else None
        self.v_bias = scope.parameter("v_bias", dim) if config.qkv_bias else None
        self.k_bias = scope.buffer("k_bias", dim, dtype=scope.run.buffer_dtype) if config.qkv_bias else None
        self.table = _Table(scope, config) if config.use_rel_pos_bias else None
        self.qkv = Linear(scope / "qkv", dim, dim * 3, bias=False)
        self.proj = Linear(scope / "proj", dim, dim)

    def _get_rel_pos_bias(self, table: _Table) -> Tensor:
        bias = table.forward()
        return ops.view(bias, 1, *bias.shape)

    def _mask(self, shared: Tensor | None) -> Tensor | None:
        if self.table is None:
            return shared
        bias = self._get_rel_pos_bias(self.table)
        return bias if shared is None else ops.add(bias, shared)

    def forward(self, x: Tensor, shared: Tensor | None) -> Tensor:
        b, n, c = x.shape
        if self.q_bias is None or self.k_bias is None or self.v_bias is None:
            qkv = self.qkv(x)
        else:
            qkv_bias = ops.cat([self.q_bias, self.k_bias, self.v_bias], 0)
            qkv = ops.linear(x, self.qkv.weight, qkv_bias)
        qkv = ops.permute(ops.reshape(qkv, b, n, 3, self.num_heads, -1), 2, 0, 3, 1, 4)
        q, k, v = ops.unbind(qkv, 0)
        if self.config.fused_attn:
            rel_pos_bias = self._mask(shared)
            x = _fused(q, k, v, self.config.attn_drop_rate, rel_pos_bias)
        else:
            q = ops.mul(q, 1.0)
            attn = ops.matmul(q, ops.transpose(k, 2, 3))
            if self.table is not None:
                attn = ops.add(attn, self._get_rel_pos_bias(self.table))
            if shared is not None:
                attn = ops.add(attn, shared)
            attn = ops.softmax(attn)
            attn = ops.dropout(attn, self.config.attn_drop_rate)
            x = ops.matmul(attn, v)
        x = ops.reshape(ops.transpose(x, 1, 2), b, n, c)
        x = self.proj(x)
        x = ops.dropout(x, self.config.proj_drop_rate)
        return x


def _fused(q: Tensor, k: Tensor, v: Tensor, rate: float, mask: Tensor | None) -> Tensor:
    """The shared bias alone has three dimensions, and is expanded as if it had a leading one."""
    if mask is not None and len(mask.shape) == 3:
        mask = ops.view(mask, 1, *mask.shape)
    return ops.scaled_dot_product_attention(q, k, v, rate, mask)


class Block(Module):
    """Pre-norm block; ``gamma_1`` and ``gamma_2`` are its own parameters."""

    keywords = ("shared_rel_pos_bias",)

    def __init__(self, scope: Scope, config: Config, rate: float) -> None:
        super().__init__(scope)
        dim, norm = config.embed_dim, NORMS[config.norm_layer]
        self.rate = rate
        self.gamma_1 = scope.parameter("gamma_1", dim) if config.init_values else None
        self.gamma_2 = scope.parameter("gamma_2", dim) if config.init_values else None
        self.norm1 = norm(scope / "norm1", dim)
        self.attn = Attention(scope / "attn", config)
        self.norm2 = norm(scope / "norm2", dim)
        mlp = config.mlp()
        self.mlp = MLPS[mlp.mlp_layer](scope / "mlp", dim, int(dim * config.mlp_ratio), mlp)

    def forward(self, x: Tensor, shared: Tensor | None) -> Tensor:
        if self.gamma_1 is None or self.gamma_2 is None:
            x = ops.add(x, drop_path(self.attn(self.norm1(x), shared), self.rate))
            x = ops.add(x, drop_path(self.mlp(self.norm2(x)), self.rate))
        else:
            x = ops.add(x, drop_path(ops.mul(self.gamma_1, self.attn(self.norm1(x), shared)), self.rate))
            x = ops.add(x, drop_path(ops.mul(self.gamma_2, self.mlp(self.norm2(x))), self.rate))
        return x


class Beit(Module):
    """[B, 3, H, W] -> [B, num_classes]."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.config = config
        width, norm = config.embed_dim, NORMS[config.norm_layer]
        self.cls_token = scope.parameter("cls_token", 1, 1, width)
        tokens = 1 + math.prod(config.grid)
        self.pos_embed = scope.parameter("pos_embed", 1, tokens, width) if config.use_abs_pos_emb else None
        self.pos_drop = Dropout(scope.row("pos_drop"), config.pos_drop_rate)
        self.head_drop = Dropout(scope.row("head_drop"), config.drop_rate)
        self.patch_embed = PatchEmbed(
            scope.row("patch_embed"), config.in_chans, width, config.patch_size, bias=True, norm=None, flatten=True
        )
        self.rel_pos_bias = _Table(scope.row("rel_pos_bias"), config) if config.use_shared_rel_pos_bias else None
        rates = linear_rates(config.drop_path_rate, config.depth)
        blocks = scope / "blocks"
        self.blocks = [Block(blocks.row(str(i)), config, rate) for i, rate in enumerate(rates)]
        use_fc_norm = config.global_pool == "avg" if config.use_fc_norm is None else config.use_fc_norm
        self.norm = None if use_fc_norm else norm(scope.row("norm"), width)
        self.fc_norm = norm(scope.row("fc_norm"), width) if use_fc_norm else None
        self.head = Linear(scope.row("head"), width, config.num_classes)
        tables = {path for path in scope.parameters if "relative_position_bias_table" in path}
        self.no_weight_decay = frozenset({"pos_embed", "cls_token"} | tables)

    def forward(self, x: Tensor) -> Tensor:
        x = self.forward_features(x)
        x = self.forward_head(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Patches, class token, position, blocks, final norm."""
        x = self.patch_embed(x)
        x = ops.cat([ops.expand(self.cls_token, x.shape[0], -1, -1), x], 1)
        if self.pos_embed is not None:
            x = ops.add(x, self.pos_embed)
        x = self.pos_drop(x)
        rel_pos_bias = self.rel_pos_bias() if self.rel_pos_bias is not None else None
        for block in self.blocks:
            x = block(x, rel_pos_bias)
        if self.norm is not None:
            x = self.norm(x)
        return x

    def forward_head(self, x: Tensor) -> Tensor:
        """Pool, norm, dropout, classifier."""
        is_mean = self.config.global_pool == "avg"
        x = ops.mean(ops.narrow(x, 1, 1, x.shape[1]), 1) if is_mean else ops.select(x, 1, 0)
        if self.fc_norm is not None:
            x = self.fc_norm(x)
        x = self.head_drop(x)
        x = self.head(x)
        return x
