"""What the tests inside a training share."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


@pytest.fixture
def quiet() -> Any:
    """The libraries' own warnings are not ours, and ours are errors."""
    from vitmem.validate import MemoryWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", MemoryWarning)
        yield
