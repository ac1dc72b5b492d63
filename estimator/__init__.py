"""vitmem: what a training step of a vision transformer needs on a GPU, computed without running it."""

__version__ = "0.1.0"
