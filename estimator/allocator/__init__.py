"""PyTorch's caching allocator, replayed."""

from .block import Block, rounded
from .caching import CachingAllocator, OutOfMemory
from .config import AllocatorConfig

__all__ = ["AllocatorConfig", "Block", "CachingAllocator", "OutOfMemory", "rounded"]
