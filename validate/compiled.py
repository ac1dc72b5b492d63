"""The model as the loops compile it, by torch's own inductor, with a record of what its forward keeps for its backward.

On a CUDA device, real or absent (:mod:`vitmem.validate.absent_kernels`), that is what users get. On the CPU other
attention kernels are traced, and other autocast lists.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from vitmem.settings import TrainSettings

__all__ = ["Partition", "SavedTensor", "compile_as_the_loop"]

_MIXED_PRECISION = {"fp16": "fp16", "bf16": "bf16"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One storage that a compiled forward hands to its backward, as it is laid out: ``bytes`` count inductor's padding.

    ``operator`` made it; ``of_weights``: from parameters and buffers alone (autocast's copies, a convolution's weight
    in another memory format).
    """

    operator: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    of_weights: bool


@dataclasses.dataclass(slots=True)
class Partition:
    """What the compiled forwards have saved since the last :meth:`forget`, in the order in which they ran."""

    device: str
    num_compiled: int = 0
    tensors: list[SavedTensor] = dataclasses.field(default_factory=list)

    def forget(self) -> None:
        """A new forward pass begins."""
        self.tensors.clear()

    def num_bytes(self, *, of_weights: bool) -> int:
        """Bytes of the tensors that come from weights alone, or of the others."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.of_weights is of_weights)


def compile_as_the_loop(settings: TrainSettings, model: nn.Module) -> tuple[nn.Module, Partition]:
    """The module that the loop calls, and the record that its calls fill.

    Trainer: accelerate compiles the model with autocast and the conversion of its outputs inside (accelerate 1.15,
    ``Accelerator.prepare_model``). timm's train.py (timm 1.0.31, ``ClassificationTask.compile``) and a plain loop
    compile the model alone; their loss is computed outside.
    """
    if settings.loop == "trainer":
        from accelerate import Accelerator

        precision = _MIXED_PRECISION.get(settings.precision, "no")
        model = Accelerator(mixed_precision=precision).prepare_model(model)
    partition = Partition(device=next(model.parameters()).device.type)
    torch._dynamo.reset()
    compiled: Any = torch.compile(model, backend=functools.partial(_inductor, partition))
    return compiled, partition


def _inductor(partition: Partition, graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """torch.compile's default backend; every forward graph reports to ``partition``. What an earlier process left in
    inductor's caches on disk would not."""
    with config.patch(force_disable_caches=True):
        compiled: Any = compile_fx(graph, inputs, inner_compile=functools.partial(_recorded, partition))
    return compiled


def _recorded(partition: Partition, graph: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    compiled = compile_fx_inner(graph, inputs, **options)
    if options.get("is_backward") or options.get("is_inference"):
        return compiled
    (outputs,) = graph.graph.output_node().args
    of_weights = _from_weights(graph.graph, set(options.get("static_input_idxs", ())))
    partition.num_compiled += 1
    return _Forward(compiled, partition, list(outputs), of_weights)  # type: ignore[arg-type]


def _from_weights(graph: fx.Graph, static: set[int]) -> set[fx.Node]:
    """The nodes that no batch goes into. ``static`` are the places of parameters and buffers among the inputs."""
    found: set[fx.Node] = set()
    places = iter(range(len(graph.nodes)))
    for node in graph.nodes:
        if node.op == "placeholder":
            if next(places) in static:
                found.add(node)
        elif node.all_input_nodes and all(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


class _Forward:
    """A compiled forward that notes the storages it hands out beyond the model's own outputs."""

    _boxed_call = True  # inductor's calling convention: the list of arguments is emptied by the callee

    def __init__(self, compiled: Any, partition: Partition, outputs: list[fx.Node], of_weights: set[fx.Node]) -> None:
        self._compiled = compiled
        self._partition = partition
        self._outputs = outputs
        self._of_weights = of_weights
        self._num_results = _num_results(outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)

    def __call__(self, arguments: list[Any]) -> Any:
        known = {_storage(tensor) for tensor in arguments if isinstance(tensor, Tensor)}
        results = self._compiled(arguments)
        known.update(_storage(result) for result in results[: self._num_results] if isinstance(result, Tensor))
        self._partition.tensors.extend(self._new(known, results))
        return results

    def _new(self, known: set[int], results: Sequence[Any]) -> Iterator[SavedTensor]:
        for node, result in list(zip(self._outputs, results))[self._num_results :]:
            if not isinstance(result, Tensor) or result.device.type != self._partition.device:
                continue  # a seed on the host
            if _storage(result) in known:
                continue
            known.add(_storage(result))
            yield SavedTensor(
                operator=_name(node),
                shape=tuple(result.shape),
                dtype=str(result.dtype).removeprefix("torch."),
                bytes=result.untyped_storage().nbytes(),
                of_weights=node in self._of_weights,
            )


def _num_results(outputs: list[fx.Node]) -> int:
    """How many of a forward's outputs the caller sees; AOTAutograd describes each, these come first."""
    from torch._functorch._aot_autograd import descriptors

    saved = descriptors.SavedForBackwardsAOTOutput, descriptors.SavedForBackwardsNoVcCheckAOTOutput
    described = outputs[0].graph.output_node().meta["desc"]
    return sum(not isinstance(description, saved) for description in described)


def _storage(tensor: Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity


def _name(node: fx.Node) -> str:
    if node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return str(getattr(node.target, "_overloadpacket", node.target)).removeprefix("aten.").removeprefix("prims.")
