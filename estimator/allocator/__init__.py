"""PyTorch's caching allocator, replayed."""

from .block import Block, rounded
from .caching import CachingAllocator, OutOfMemory
from .config import AllocatorConfig

try:
    from ._default import DefaultAllocator
except ImportError:  # installed without a C compiler
    from .default import DefaultAllocator

__all__ = ["AllocatorConfig", "Block", "CachingAllocator", "DefaultAllocator", "OutOfMemory", "rounded"]
