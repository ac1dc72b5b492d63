"""What a measurement was made with."""

from __future__ import annotations

import platform
from importlib import metadata

__all__ = ["versions"]

_PACKAGES = ("torch", "timm", "transformers", "torchvision", "accelerate")


def versions(train: str) -> dict[str, str]:
    """The versions of Python and of the libraries that build, train and allocate: PEFT among them where it does."""
    packages = (*_PACKAGES, *(("peft",) if train == "lora" else ()))
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}
