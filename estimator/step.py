"""One training step, played: the model, its optimizer and its batch, as the loops in ``loops.py`` see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from . import ops
from .engine import Autocast, Module, Repeats, Run, Scope, Tensor, backward
from .engine.autograd import AccumulateGrad, ones_like
from .errors import InvalidRequest
from .families import Plan
from .kernels import Kernels
from .ledger import Ledger
from .lora import frozen_rows, is_trained, lora_of
from .optimizers import Group, States, optimizer_of
from .parallel import strategy_of
from .settings import TrainSettings
from .units import DType

__all__ = ["LossOf", "Step"]

LossOf = Callable[[Tensor], Tensor]

AUTOCAST_DTYPES = {"fp16": DType.float16, "bf16": DType.bfloat16}
PARAMETER_DTYPES = {"pure-fp16": DType.float16, "pure-bf16": DType.bfloat16}


def played(sizes: Sequence[int]) -> list[int]:
    """Which of a step's batches are played.

    The third and later ones repeat the second, allocation by allocation, but which blocks they get settles later, for
    odd and even ones apart: three or four are played, a smaller last one among them.
    """
    last, most = len(sizes) - 1, 4 - len(sizes) % 2
    if last < most:
        return [*range(last + 1)]
    return [*range(most)] if sizes[last] == sizes[1] else [*range(most - 1), last]


class Step:
    """The state of a training run between steps. ``names`` are what the loop's Python variables hold."""

    def __init__(self, plan: Plan, settings: TrainSettings, kernels: Kernels) -> None:
        self.settings, self.plan = settings, plan
        self.dtype = PARAMETER_DTYPES.get(settings.precision, DType.float32)
        self.autocast_dtype = AUTOCAST_DTYPES.get(settings.precision)
        self.image_dtype = self.dtype
        strategy = strategy_of(settings)
        self.scales = self.autocast_dtype is DType.float16 and not strategy.updates  # else the engine does by itself
        if strategy.casts_model and self.autocast_dtype is not None:
            self.dtype, self.autocast_dtype = self.autocast_dtype, None
        self.image_size = plan.image_size
        self.run = run = Run(kernels=kernels, parameter_dtype=self.dtype, buffer_dtype=strategy.buffer_dtype(settings))
        if strategy.casts_model:
            run.adapter_dtype = self.dtype
        run.start_phase("setup", kind="temporaries")
        self.scope = Scope(run)
        self.scope.lora = lora_of(settings, plan)
        self.model: Module = plan.build(self.scope)
        run.events[:] = self.scope.moving_order()
        self._freeze(plan)
        #: The parameters that require grad, by name.
        self.trained = {name: tensor for name, tensor in self.scope.parameters.items() if tensor.requires_grad}
        self._checkpoint()
        self.optimizer = optimizer_of(settings.optim or "adamw_torch", kernels.torch, on_cpu=kernels.on_cpu)
        self.names: dict[str, object] = {}
        self.no_decay: dict[str, bool] = {}  # the loop's answers
        self.sizes: Sequence[int] = (settings.bs,) * settings.accum  # images of each micro-batch of a step
        self.without_gradient: tuple[str, ...] = ()  # what re-entrant checkpointing cuts off
        self.repeats: Repeats | None = None  # where equal blocks share one play
        self._states = States(run, self.optimizer, self._embeddings())
        self.strategy = strategy(self)
        self.scaler: list[Tensor] = []  # scale and growth tracker, made when the first loss is scaled

    def _embeddings(self) -> set[int]:
        """The tables of ``nn.Embedding`` modules, which Trainer tells some optimizers of."""
        tables = self.scope.embeddings if self.settings.loop == "trainer" else set()
        return {id(self.scope.parameters[name]) for name in tables}

    def _freeze(self, plan: Plan) -> None:
        """``linear-probe`` trains the classifier only, ``lora`` what PEFT has added; ``freeze_layers`` K not the stem
        and the first K blocks."""
        train, frozen = self.settings.train, frozen_rows(self.settings, plan)
        for name, parameter in self.scope.parameters.items():
            row = parameter.storage.layer
            others = (train == "linear-probe" and row not in plan.head) or (train == "lora" and not is_trained(name))
            if row in frozen or others:
                parameter.requires_grad = False

    def _checkpoint(self) -> None:
        if self.settings.grad_checkpointing:
            self.model.enable_checkpointing(self.settings.checkpoint_layers)
            self.run.reentrant = self.settings.checkpoint_reentrant

    @property
    def updated(self) -> dict[str, Tensor]:
        """What an optimizer updates of the parameters that get a gradient: it makes no state for the others."""
        left_out = self.scope.unused.union(self.without_gradient)
        return {name: self.strategy.leaf(p) for name, p in self.trained.items() if name not in left_out}

    @property
    def _leaves(self) -> list[AccumulateGrad]:
        """Where the gradients are that are clipped and freed."""
        leaves = [self.strategy.leaf(p).accumulator for p in self.trained.values()]
        return [leaf for leaf in leaves if leaf is not None]

    @property
    def updated_never(self) -> tuple[str, ...]:
        """The parameters that require grad and never get a gradient."""
        return tuple(name for name in self.trained if name in self.scope.unused)

    def scalars(self, count: int) -> list[Tensor]:
        """Zero-dimensional fp32 tensors of the loop."""
        return [Tensor.empty(self.run, (), DType.float32, kind="temporaries") for _ in range(count)]

    def num_items(self, sizes: Sequence[int]) -> Tensor | None:
        """Trainer's count of the labels in batches of these sizes: ``sum(labels.ne(-100).sum() for ...)``."""
        if self.model.own_loss:
            return None
        total = None
        for place in played(sizes):
            counted = Tensor.empty(self.run, (sizes[place],), DType.bool, kind="inputs")
            of_one_batch = Tensor.empty(self.run, (), DType.int64, kind="inputs")
            widened = self.run.scratch(8 * counted.numel)  # the kernel sums no bytes
            del widened, counted
            total = Tensor.empty(self.run, (), DType.int64, kind="inputs")
            del of_one_batch
        return total

    @property
    def micro_steps(self) -> list[int]:
        """The micro-steps to play."""
        return played(self.sizes)

    def images(self, size: int, dtype: DType | None = None) -> Tensor:
        """A batch of pixel values [B, 3, H, W]."""
        shape = (size, 3, *self.image_size)
        return Tensor.empty(self.run, shape, dtype or self.image_dtype, kind="inputs")

    def batch(self, size: int) -> tuple[Tensor, Tensor | None]:
        """Images and labels; a model with its own loss gets no labels."""
        return self.images(size), None if self.model.own_loss else self.labels(size)

    def labels(self, size: int) -> Tensor:
        """Class indices [B]; in a training with mixup an fp32 target for every class [B, K]."""
        if self.settings.mixup and self.run.training:
            return Tensor.empty(self.run, (size, self.settings.num_classes), DType.float32, kind="inputs")
        return Tensor.empty(self.run, (size,), DType.int64, kind="inputs")

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """``torch.autocast``; leaving it drops the cached weight copies."""
        if self.autocast_dtype is None:
            yield
            return
        self.run.autocast = Autocast(self.autocast_dtype)
        yield
        self.run.autocast.weights.clear()
        self.run.autocast = None

    def start(self, phase: str) -> None:
        """Enter ``forward``, ``backward``, ``optimizer_step`` or ``evaluation``."""
        self.run.layer = "model"
        forward = phase in {"forward", "evaluation"}
        self.run.start_phase(phase, kind="activations" if forward else "temporaries")

    def backward(self, loss: Tensor) -> None:
        """``loss.backward()``, through the scaler for fp16."""
        if self.scales and not self.scaler:
            self.scaler = self.scalars(2)
        if not loss.requires_grad:
            raise InvalidRequest("nothing that is trained gets a gradient; leave out --checkpoint-reentrant")
        scaled = ops.mul(loss, self.scaler[0]) if self.scaler else loss
        gradient = ones_like(scaled)
        self.run.in_backward = True
        backward(scaled, gradient)
        self.run.in_backward = False
        self.run.layer = "model"
        if self.run.reentrant:  # whatever will ever get a gradient has one
            got = {name for name, p in self.trained.items() if p.accumulator and p.accumulator.grad}
            self.without_gradient = tuple(name for name in self.trained if name not in got | self.scope.unused)
        self.strategy.after_backward()

    def unscale(self) -> Tensor | None:
        """``GradScaler.unscale_``, line by line: gradients in place; the device's copy of found_inf stays."""
        if not self.scaler or self.strategy.updates_on_host:
            return None
        double = Tensor.empty(self.run, (), DType.float64)
        reciprocal = Tensor.empty(self.run, (), DType.float64)
        del double
        (inv_scale,) = self.scalars(1)
        del reciprocal
        found_inf, per_device_found_inf, per_device_inv_scale = self.scalars(3)
        over_ranks = self.scalars(self.strategy.divides_gradients)
        del over_ranks, inv_scale, found_inf, per_device_inv_scale
        return per_device_found_inf

    def check_inf(self) -> Tensor:
        """``GradScaler._check_inf_per_device``: a fused implementation unscales by itself."""
        dummy_inv_scale, found_inf, per_device_found_inf, per_device_inv_scale = self.scalars(4)
        over_ranks = self.scalars(self.strategy.divides_gradients)
        del over_ranks, dummy_inv_scale, found_inf, per_device_inv_scale
        return per_device_found_inf

    def clip_grad_norm(self) -> Tensor:
        """Trainer's clipping to ``max_grad_norm``."""
        return self.strategy.clip_grad_norm([leaf.grad for leaf in self._leaves if leaf.grad is not None])

    def construct_optimizer(self, groups: list[Group]) -> None:
        """What an optimizer makes before the first step, for the parameters that it is handed."""
        if self.optimizer.at_construction:
            for group in groups:
                self._states.all(group.parameters)

    def optimizer_step(self, groups: list[Group], *, scaled: bool) -> None:
        """The update of every group in turn; the first one makes the optimizer's state.

        A fused implementation is handed found_inf and, if the gradients are still scaled, the scale.
        """
        if self.strategy.updates_on_host:
            return
        handed = self.scalars(1 + scaled) if self.scaler and self.optimizer.takes_scaler else []
        self.optimizer.step(groups, self._states)
        del handed

    def saved_activations(self, ledger: Ledger) -> dict[str, int]:
        """Bytes by layer that the last micro-step's forward leaves for the backward: loss and logits are only names."""
        starts = [first for name, first in ledger.phases if name == "forward"]
        stops = [first for name, first in ledger.phases if name == "backward"]
        named = {value.storage.id for value in self.names.values() if isinstance(value, Tensor)}
        living: dict[int, str] = {}
        for event in ledger.events[starts[-1] : stops[-1]]:
            if event < 0:
                living.pop(~event, None)
            elif ledger.kinds[event] == "activations" and event not in named:
                living[event] = ledger.layers[event]
        saved: dict[str, int] = {}
        for i, layer in living.items():
            saved[layer] = saved.get(layer, 0) + ledger.bytes[i]
        return saved

    @property
    def attention_kernel(self) -> str | None:
        """The kernel behind ``scaled_dot_product_attention``, once it has run."""
        return self.run.attention_kernel

    def dispose(self) -> None:
        """Let go of all that refers back to the step, so that nothing of it waits for the garbage collector."""
        run = self.run
        run.handles, run.lt_handles, run.use_hook, run.grad_hook = {}, {}, None, None
        self.names = {}
        if self.repeats is not None:
            self.repeats.dispose()
        del self.strategy

    def zero_grad(self) -> None:
        """``zero_grad(set_to_none=True)``."""
        for leaf in self._leaves:
            leaf.grad = None
