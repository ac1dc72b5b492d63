"""PyTorch's caching allocator, replayed."""

from .block import Block
from .caching import AllocatorConfig, CachingAllocator, OutOfMemory

__all__ = ["AllocatorConfig", "Block", "CachingAllocator", "OutOfMemory"]
