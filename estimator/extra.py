"""The optional side of the package: what runs the real libraries, and what to install where it is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import NotModelled

__all__ = ["real_libraries"]

_PACKAGES = ("torch", "torchvision", "timm", "transformers", "accelerate")


@contextmanager
def real_libraries(what: str) -> Iterator[None]:
    """Around imports of ``vitmem.validate``: a missing package of the extra is NotModelled with the install hint.

    ``what`` begins the sentence, such as "validate runs the real model".
    """
    import gc

    gc.enable()  # the real model makes cycles, whose tensors have to die as they do in a training
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise NotModelled(f"{what} and needs {error.name}; pip install 'vitmem[validate]'") from error
