"""Put first on a child's ``PYTHONPATH`` by :mod:`vitmem.validate.null.command`: watches torch once it is imported.

Runs in whatever interpreter the command starts, so that it needs the standard library only. A process that has used the
device leaves ``PID.json`` in the folder ``VITMEM_NULL_REPORT``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _pass_on() -> None:
    """The ``sitecustomize`` that this one hides."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = ours


class _AfterTorch(MetaPathFinder, Loader):
    """Finds torch as it would be found anyway, and goes on once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = self.loader  # type: ignore[union-attr]
        self.loader.exec_module(module)
        _watch()


def _watch() -> None:
    spec = importlib.util.spec_from_file_location("_vitmem_null_watch", os.path.join(_HERE, "_vitmem_null_watch.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.install(os.environ["VITMEM_NULL_REPORT"], int(os.environ.get("VITMEM_NULL_STEPS", "0")))


if "VITMEM_NULL_REPORT" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
_pass_on()
