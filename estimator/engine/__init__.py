"""A small autograd on shapes: tensors without data, with PyTorch's rules for what lives how long.

Lifetimes are CPython's own: a storage dies when the last tensor that shows it is dropped, which is how PyTorch's
tensors die. A family written like its library's ``forward`` therefore keeps and drops what the library does.
"""

from .autograd import Node, backward, record, record_all
from .library import Library
from .log import NotRepeatable, call_hook
from .module import Module, Scope, own_first
from .repeat import Repeats
from .resizable import Resizable
from .run import Autocast, Run, Storage
from .signature import Part
from .tensor import Tensor, contiguous_strides

__all__ = [
    "Autocast",
    "Library",
    "Module",
    "Node",
    "NotRepeatable",
    "Part",
    "Repeats",
    "Resizable",
    "Run",
    "Scope",
    "Storage",
    "Tensor",
    "backward",
    "call_hook",
    "contiguous_strides",
    "own_first",
    "record",
    "record_all",
]
