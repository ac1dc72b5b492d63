"""transformers ``ViTMAEForPreTraining`` (transformers 5.24, models/vit_mae): a masked encoder and a decoder of pixels.

The model computes its own loss, the squared error of the masked patches' pixels: there are no labels.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from .. import ops
from ..engine import Module, Scope, Tensor
from ..errors import InvalidRequest, NoFamily
from ..settings import TrainSettings
from ..units import DType
from ._hf import EncoderLayer, PatchEmbeddings, read_config
from ._plan import Plan
from .nn import LayerNorm, Linear

if TYPE_CHECKING:
    from ..catalog import ModelConfig

__all__ = ["plan"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The fields of ``ViTMAEConfig`` that decide memory; sizes are (height, width) in pixels, both the same."""

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    num_channels: int = 3
    qkv_bias: bool = True
    decoder_num_attention_heads: int = 16
    decoder_hidden_size: int = 512
    decoder_num_hidden_layers: int = 8
    decoder_intermediate_size: int = 2048
    mask_ratio: float = 0.75
    norm_pix_loss: bool = False
    attn: str = "sdpa"

    @property
    def num_patches(self) -> int:
        """Whole patches only: anything else is refused."""
        return (self.image_size[0] // self.patch_size[0]) ** 2

    @property
    def num_kept(self) -> int:
        """Patches that the encoder sees: the slice ``[:int(N * (1 - mask_ratio))]``."""
        return len(range(self.num_patches)[: int(self.num_patches * (1 - self.mask_ratio))])

    @property
    def decoder(self) -> Config:
        """The decoder's layers are the encoder's at other sizes."""
        return dataclasses.replace(
            self,
            hidden_size=self.decoder_hidden_size,
            num_attention_heads=self.decoder_num_attention_heads,
            intermediate_size=self.decoder_intermediate_size,
        )


KNOWN = frozenset(field.name for field in dataclasses.fields(Config)) - {"attn"}


def plan(model: ModelConfig, settings: TrainSettings) -> Plan:
    """The model that ``ViTMAEForPreTraining(config)`` builds; raises where transformers would."""
    _refuse_classification(model.name, settings)
    fields = read_config(model.name, model.config, settings, KNOWN | {"num_labels"})
    del fields["num_labels"]
    config = Config(**fields)
    _check(model, config, settings)
    encoder, decoder = config.num_hidden_layers, config.decoder_num_hidden_layers
    return Plan(
        model=model,
        build=partial(ForPreTraining, config=config),
        image_size=config.image_size,
        patch_size=config.patch_size,
        num_tokens=config.num_patches + 1,
        blocks=(
            *(f"vit.layers.{i}" for i in range(encoder)),
            *(f"decoder.decoder_layers.{i}" for i in range(decoder)),
        ),
        head=(),
        stem=("vit.embeddings",),
        attn=config.attn,
        resolved={
            "res": config.image_size,
            "patch": config.patch_size[0],
            "dim": config.hidden_size,
            "depth": config.num_hidden_layers,
            "heads": config.num_attention_heads,
            "mlp_ratio": config.intermediate_size / config.hidden_size,
            "dropout": config.hidden_dropout_prob,
            "attn_dropout": config.attention_probs_dropout_prob,
            "drop_path": 0.0,
            "patch_drop": 0.0,
        },
        assumptions=(
            f"pre-training on the model's own loss, {config.num_kept} of {config.num_patches} patches in the encoder",
            "no labels: the Trainer's and the plain loop's batch is pixel values, timm's loader fetches unused targets;"
            " the plain and timm loops take loss = model(x).loss and keep no other output",
            "blocks are counted through the encoder and on through the decoder",
        ),
    )


def _refuse_classification(name: str, settings: TrainSettings) -> None:
    if settings.train == "linear-probe":
        raise InvalidRequest(f"{name} is pre-trained without labels: it has no classifier to train; use --train full")
    if settings.num_classes != TrainSettings().num_classes:
        raise InvalidRequest(f"{name} is pre-trained without labels: it has no classifier; leave out --num-classes")


def _check(model: ModelConfig, config: Config, settings: TrainSettings) -> None:
    """What the library refuses: patches are squares that fill a square, the decoder's fixed positions come in fours."""
    (height, width), side = config.image_size, config.patch_size[0]
    if settings.patch is None and not isinstance(model.config["patch_size"], int):
        raise InvalidRequest(f"{model.name}: patch_size must be one number in config.json; the library fails otherwise")
    if height != width or height % side:
        raise InvalidRequest(
            f"{model.name} takes square images of whole patches, not {height}x{width}; "
            f"use --res {max(height // side, 1) * side}"
        )
    if config.decoder_hidden_size % 4:
        raise InvalidRequest(f"{model.name}: decoder_hidden_size {config.decoder_hidden_size} is not divisible by 4")
    if config.decoder_hidden_size % config.decoder_num_attention_heads:
        raise NoFamily(
            f"{model.name}: decoder_hidden_size {config.decoder_hidden_size} with "
            f"{config.decoder_num_attention_heads} heads that do not divide it is not modelled"
        )


def _fixed(scope: Scope, name: str, *shape: int) -> Tensor:
    """A parameter that never requires grad."""
    parameter = scope.parameter(name, *shape)
    parameter.requires_grad = False
    return parameter


def _for_each_channel(ids: Tensor, width: int) -> Tensor:
    """``ids.unsqueeze(-1).repeat(1, 1, width)``: int64 [B, N] -> [B, N, width], in memory."""
    return ops.repeat(ops.view(ids, *ids.shape, 1), 1, 1, width)


class Embeddings(Module):
    """``ViTMAEEmbeddings``: [B, 3, H, W] -> class token and the kept patches, the mask [B, N], and the way back."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width = config.hidden_size
        self.num_kept = config.num_kept
        self.cls_token = scope.parameter("cls_token", 1, 1, width)
        self.position_embeddings = _fixed(scope, "position_embeddings", 1, config.num_patches + 1, width)
        self.patch_embeddings = PatchEmbeddings(
            scope / "patch_embeddings", config.num_channels, width, config.patch_size
        )

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        embeddings = self.patch_embeddings(pixel_values)
        position_embeddings = self.position_embeddings
        embeddings = ops.add(embeddings, ops.narrow(position_embeddings, 1, 1, position_embeddings.shape[1]))
        embeddings, mask, ids_restore = self._random_masking(embeddings)
        cls_token = ops.add(self.cls_token, ops.narrow(position_embeddings, 1, 0, 1))
        cls_tokens = ops.expand(cls_token, embeddings.shape[0], -1, -1)
        embeddings = ops.cat([cls_tokens, embeddings], 1)
        return embeddings, mask, ids_restore

    def _random_masking(self, sequence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        run, (batch_size, seq_length, dim) = sequence.run, sequence.shape
        noise = Tensor.empty(run, (batch_size, seq_length), DType.float32)
        ids_shuffle = ops.argsort(noise)
        ids_restore = ops.argsort(ids_shuffle)
        ids_keep = ops.narrow(ids_shuffle, 1, 0, self.num_kept)
        sequence_unmasked = ops.gather(sequence, _for_each_channel(ids_keep, dim), 1)
        mask = Tensor.empty(run, (batch_size, seq_length), DType.float32)
        mask = ops.gather(mask, ids_restore, 1)
        return sequence_unmasked, mask, ids_restore


class Model(Module):
    """``ViTMAEModel``."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.embeddings = Embeddings(scope.row("embeddings"), config)
        layers = scope / "layers"
        self.layers = [EncoderLayer(layers.row(str(i)), config) for i in range(config.num_hidden_layers)]
        self.layernorm = LayerNorm(scope.row("layernorm"), config.hidden_size)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        embedding_output, mask, ids_restore = self.embeddings(pixel_values)
        hidden_states = embedding_output
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        sequence_output = self.layernorm(hidden_states)
        return sequence_output, mask, ids_restore


class Decoder(Module):
    """``ViTMAEDecoder``: kept tokens and mask tokens in their old order -> pixels of every patch."""

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        width, decoder = config.decoder_hidden_size, config.decoder
        self.mask_token = scope.parameter("mask_token", 1, 1, width)
        self.decoder_pos_embed = _fixed(scope, "decoder_pos_embed", 1, config.num_patches + 1, width)
        self.decoder_embed = Linear(scope.row("decoder_embed"), config.hidden_size, width)
        layers = scope / "decoder_layers"
        count = config.decoder_num_hidden_layers
        self.decoder_layers = [EncoderLayer(layers.row(str(i)), decoder) for i in range(count)]
        self.decoder_norm = LayerNorm(scope.row("decoder_norm"), width)
        pixels = config.patch_size[0] ** 2 * config.num_channels
        self.decoder_pred = Linear(scope.row("decoder_pred"), width, pixels)

    def forward(self, hidden_states: Tensor, ids_restore: Tensor) -> Tensor:
        hidden_states = self.decoder_embed(hidden_states)
        batch, length, width = hidden_states.shape
        mask_tokens = ops.repeat(self.mask_token, batch, ids_restore.shape[1] + 1 - length, 1)
        unmasked_tokens = ops.cat([ops.narrow(hidden_states, 1, 1, length), mask_tokens], 1)
        unmasked_tokens = ops.gather(unmasked_tokens, _for_each_channel(ids_restore, width), 1)
        class_token = hidden_states if length == 1 else ops.narrow(hidden_states, 1, 0, 1)
        hidden_states = ops.cat([class_token, unmasked_tokens], 1)
        del class_token
        decoder_pos_embed = self.decoder_pos_embed
        hidden_states = ops.add(hidden_states, decoder_pos_embed)
        for layer_module in self.decoder_layers:
            hidden_states = layer_module(hidden_states)
        hidden_states = self.decoder_norm(hidden_states)
        logits = self.decoder_pred(hidden_states)
        logits = ops.narrow(logits, 1, 1, logits.shape[1])
        return logits


class ForPreTraining(Module):
    """[B, 3, H, W] -> loss, predicted pixels [B, N, 3 * patch^2], mask, and the order of the patches."""

    own_loss = True

    def __init__(self, scope: Scope, config: Config) -> None:
        super().__init__(scope)
        self.config = config
        self.vit = Model(scope / "vit", config)
        self.decoder = Decoder(scope / "decoder", config)
        self.blocks = [*self.vit.layers, *self.decoder.decoder_layers]

    def _patchify(self, pixel_values: Tensor) -> Tensor:
        batch, channels, height, _ = pixel_values.shape
        patch, rows = self.config.patch_size[0], height // self.config.patch_size[0]
        patches = ops.reshape(pixel_values, batch, channels, rows, patch, rows, patch)
        patches = ops.permute(patches, 0, 2, 4, 3, 5, 1)
        return ops.reshape(patches, batch, rows * rows, patch**2 * channels)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outputs = self.vit(pixel_values)
        latent, mask, ids_restore = outputs
        logits = self.decoder(latent, ids_restore)
        target = self._patchify(pixel_values)
        if self.config.norm_pix_loss:
            mean = ops.view(ops.mean(target, 2), *target.shape[:2], 1)
            var = ops.view(ops.mean(target, 2), *target.shape[:2], 1)
            target = ops.div(ops.add(target, mean), ops.power(ops.mul(var, 1.0)))
        loss = ops.power(ops.add(logits, target))
        loss = ops.mean(loss, 2)
        loss = ops.div(ops.sum_all(ops.mul(loss, mask)), ops.sum_all(mask))
        return loss, logits, mask, ids_restore
