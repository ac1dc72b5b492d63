"""One training step, played: the model, its optimizer and its batch, as the loops in ``loops.py`` see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from . import ops
from .engine import Autocast, Module, Run, Scope, Tensor, backward
from .engine.autograd import ones_like
from .families import Plan
from .kernels import Kernels
from .ledger import Ledger
from .optimizers import OPTIMIZERS, Group
from .settings import TrainSettings
from .units import DType

__all__ = ["LossOf", "Step"]

LossOf = Callable[[Tensor], Tensor]

AUTOCAST_DTYPES = {"fp16": DType.float16, "bf16": DType.bfloat16}
PARAMETER_DTYPES = {"pure-fp16": DType.float16, "pure-bf16": DType.bfloat16}


class Step:
    """The state of a training run between steps. ``names`` are what the loop's Python variables hold."""

    def __init__(self, plan: Plan, settings: TrainSettings, kernels: Kernels) -> None:
        self.settings = settings
        self.dtype = PARAMETER_DTYPES.get(settings.precision, DType.float32)
        self.autocast_dtype = AUTOCAST_DTYPES.get(settings.precision)
        self.image_size = plan.image_size
        self.run = run = Run(kernels=kernels, parameter_dtype=self.dtype)
        run.start_phase("setup", kind="temporaries")
        self.workspaces = run.workspace(*(kernels.cublas_workspace_bytes,) * 2)
        self.scope = Scope(run)
        self.model: Module = plan.build(self.scope)
        self._freeze(plan)
        self._checkpoint(plan)
        self.optimizer = OPTIMIZERS[settings.optim or "adamw_torch"]
        self.names: dict[str, object] = {}
        self.optimizer_state: list[Tensor] = []
        self.scaler = self.scalars(2) if self.autocast_dtype is DType.float16 else []  # scale and growth tracker

    @property
    def trained(self) -> dict[str, Tensor]:
        """The parameters that require grad, by name."""
        return {name: tensor for name, tensor in self.scope.parameters.items() if tensor.requires_grad}

    def _freeze(self, plan: Plan) -> None:
        """``linear-probe`` trains the classifier only; ``freeze_layers`` K not the stem and the first K blocks."""
        settings = self.settings
        count = settings.freeze_layers
        frozen = set() if count is None else {*plan.stem, *plan.blocks[:count]}
        for parameter in self.scope.parameters.values():
            row = parameter.storage.layer
            if row in frozen or (settings.train == "linear-probe" and row not in plan.head):
                parameter.requires_grad = False

    def _checkpoint(self, plan: Plan) -> None:
        if self.settings.grad_checkpointing:
            count = self.settings.checkpoint_layers
            for block in self.model.blocks[:count]:
                block.checkpointed = True

    @property
    def updated(self) -> dict[str, Tensor]:
        """The parameters that get a gradient: an optimizer makes no state for the others."""
        return {name: tensor for name, tensor in self.trained.items() if name not in self.scope.unused}

    @property
    def loss_dtype(self) -> DType:
        """Autocast computes the loss in fp32, else it has the model's type."""
        return DType.float32 if self.autocast_dtype else self.dtype

    def scalars(self, count: int) -> list[Tensor]:
        """Zero-dimensional fp32 tensors of the loop."""
        return [Tensor.empty(self.run, (), DType.float32, kind="temporaries") for _ in range(count)]

    def num_items(self) -> Tensor:
        """Trainer's count of the labels in a step's batches: ``sum(labels.ne(-100).sum() for ...)``."""
        of_one_batch = Tensor.empty(self.run, (), DType.int64, kind="inputs")
        total = Tensor.empty(self.run, (), DType.int64, kind="inputs")
        del of_one_batch
        return total

    def make_optimizer_state(self) -> None:
        """What exists from the end of the first step on."""
        for parameter in self.updated.values():
            self.run.layer = parameter.storage.layer
            self.optimizer_state += [
                Tensor.empty(self.run, shape, dtype, kind="optimizer_state")
                for shape, dtype in self.optimizer.state(parameter.shape, parameter.dtype)
            ]

    def images(self, dtype: DType | None = None) -> Tensor:
        """A batch of pixel values [B, 3, H, W]."""
        shape = (self.settings.bs, 3, *self.image_size)
        return Tensor.empty(self.run, shape, dtype or self.dtype, kind="inputs")

    def labels(self) -> Tensor:
        """Class indices [B]."""
        return Tensor.empty(self.run, (self.settings.bs,), DType.int64, kind="inputs")

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
        """Enter ``forward``, ``backward`` or ``optimizer_step``."""
        self.run.layer = "model"
        self.run.start_phase(phase, kind="activations" if phase == "forward" else "temporaries")

    def backward(self, loss: Tensor) -> None:
        """``loss.backward()``, through the scaler for fp16."""
        scaled = ops.mul(loss, self.scaler[0]) if self.scaler else loss
        gradient = ones_like(scaled)
        backward(scaled, gradient)
        self.run.layer = "model"

    def unscale(self) -> Tensor | None:
        """``GradScaler.unscale_``, line by line: gradients in place; the device's copy of found_inf stays."""
        if not self.scaler:
            return None
        double = Tensor.empty(self.run, (), DType.float64)
        reciprocal = Tensor.empty(self.run, (), DType.float64)
        del double
        (inv_scale,) = self.scalars(1)
        del reciprocal
        found_inf, per_device_found_inf, per_device_inv_scale = self.scalars(3)
        del inv_scale, found_inf, per_device_inv_scale
        return per_device_found_inf

    def clip_grad_norm(self) -> Tensor:
        """Foreach clipping: one norm per gradient, their stack, the total (torch/nn/utils/clip_grad.py)."""
        grads = [p.accumulator.grad for p in self.trained.values() if p.accumulator and p.accumulator.grad]
        norms = [Tensor.empty(self.run, (), grad.dtype) for grad in grads]
        stacked = Tensor.empty(self.run, (len(norms),), self.dtype)
        total = Tensor.empty(self.run, (), self.dtype)
        del norms, stacked
        coefficient = [Tensor.empty(self.run, (), self.dtype) for _ in range(2)]
        del coefficient
        return total

    def optimizer_step(self, groups: list[Group]) -> None:
        """The update of every group in turn."""
        for group in groups:
            self.optimizer.step(group)

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

    def zero_grad(self) -> None:
        """``zero_grad(set_to_none=True)``."""
        for parameter in self.trained.values():
            assert parameter.accumulator is not None
            parameter.accumulator.grad = None
