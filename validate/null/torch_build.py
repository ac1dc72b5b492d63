"""The torch that is installed, without importing it: its version, its libraries, and NVIDIA's wheels beside it."""

from __future__ import annotations

import dataclasses
import importlib.util
import platform
import runpy
import sys
from pathlib import Path

from vitmem.errors import NotModelled

__all__ = ["TorchBuild", "installed"]

#: Compilers: they work without a device, and what they compile is never run.
_REAL = ("libnvrtc", "libnvJitLink")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """A CUDA build of torch as pip installs it; ``site`` is the folder that holds torch and NVIDIA's wheels."""

    version: str
    cuda: str
    site: Path

    @property
    def consumers(self) -> list[Path]:
        """The libraries whose symbols have to be found."""
        return sorted([*self.site.glob("torch/lib/*.so"), *self.site.glob("torchvision/*.so")])

    @property
    def nvidia_libraries(self) -> list[Path]:
        """NVIDIA's own libraries, which the stand-ins take the place of; none is ever loaded."""
        found = sorted(self.site.glob("nvidia/*/lib/lib*.so.*"))
        return [path for path in found if not path.name.startswith(_REAL)]

    @property
    def include_folders(self) -> list[Path]:
        """NVIDIA's headers; ``crt/`` comes with triton only."""
        return [*sorted(self.site.glob("nvidia/*/include")), self.site / "triton/backends/nvidia/include"]


def installed() -> TorchBuild:
    """The torch of this interpreter; NotModelled where the null device cannot work with it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        here = f"{platform.system()} on {platform.machine()}"
        raise NotModelled(f"the null device is untested on {here}; it needs Linux on x86_64 (use --backend meta)")
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    folder = Path(spec.origin).parent
    version = runpy.run_path(str(folder / "version.py"))
    if version["cuda"] is None:
        raise NotModelled(
            f"torch {version['__version__']} is a build without CUDA; the null device runs PyTorch's own CUDA code: "
            "install torch from PyPI's default index (no GPU is needed)"
        )
    build = TorchBuild(version=version["__version__"], cuda=version["cuda"], site=folder.parent)
    if not build.nvidia_libraries or not (build.include_folders[-1] / "crt").is_dir():
        raise NotModelled(
            f"torch {build.version} is not installed beside NVIDIA's wheels and triton, whose headers the null device "
            "is compiled against; install it with pip"
        )
    return build
