"""PyTorch's CUDA build on a device that is not there: its allocator and choices are real, its kernels do nothing.

Stand-ins of NVIDIA's libraries (``csrc/``, compiled by :mod:`.build`) are loaded into a child process before torch.
"""
