"""PyTorch's caching allocator, replayed."""

from .block import Block, rounded
from .caching import CachingAllocator, OutOfMemory
from .config import AllocatorConfig

try:
    from ._player import Player
except ImportError:  # installed without a C compiler
    from .player import Player

__all__ = ["AllocatorConfig", "Block", "CachingAllocator", "OutOfMemory", "Player", "rounded"]
