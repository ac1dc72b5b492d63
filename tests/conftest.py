"""A run to play on, and a way to read what happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vitmem.engine import Run, Tensor, library
from vitmem.kernels import Kernels
from vitmem.units import DType


@pytest.fixture
def run() -> Run:
    """An A100 in fp32, in its forward phase; cuBLAS has its workspace already."""
    run = Run(kernels=Kernels(), parameter_dtype=DType.float32)
    run.use_cublas()
    run.start_phase("forward", kind="activations")
    return run


@pytest.fixture
def own_library() -> Iterator[None]:
    """Nothing is known of earlier plays, and nothing of this test's stays: for tests that change what operators do."""
    library.clear()
    yield
    library.clear()


class Parameters:
    """Leaves that require grad, as a module makes them."""

    def __init__(self, run: Run) -> None:
        from vitmem.engine import Scope

        self.scope = Scope(run)
        self.count = 0

    def __call__(self, *shape: int) -> Tensor:
        self.count += 1
        return self.scope.parameter(f"p{self.count}", *shape)


@pytest.fixture
def parameter(run: Run) -> Parameters:
    """Make a parameter of a shape."""
    return Parameters(run)


class Watch:
    """The allocations made, and those freed, since it was asked last."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.at = 0
        self.reset()

    def reset(self) -> None:
        self.at = len(self.run.events)

    def sizes(self, kind: str | None = None) -> list[int]:
        """Bytes of the allocations made since the last reset, in order; of one kind if it is named."""
        return [size for size, own, _ in self._new() if kind is None or own == kind]

    def tensor_sizes(self) -> list[int]:
        """:meth:`sizes` without what kernels borrow."""
        return [size for size, kind, _ in self._new() if kind != "workspaces"]

    def _new(self) -> list[tuple[int, str, str]]:
        return [self.run.allocations[event] for event in self.run.events[self.at :] if event >= 0]

    def living(self) -> int:
        """Bytes made since the last reset that are still alive."""
        total = 0
        born = set()
        for event in self.run.events[self.at :]:
            if event >= 0:
                born.add(event)
                total += self.run.allocations[event][0]
            elif ~event in born:
                total -= self.run.allocations[~event][0]
        return total


@pytest.fixture
def watch(run: Run) -> Watch:
    """What is allocated from now on."""
    return Watch(run)
