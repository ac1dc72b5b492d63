"""The stand-ins, called one by one: what is written by hand answers, what is generated succeeds, none is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from vitmem.errors import NotModelled
from vitmem.validate.null.build import MANIFEST, libraries, stand_ins
from vitmem.validate.null.device import NullDevice
from vitmem.validate.null.torch_build import installed

pytest.importorskip("torch")
CASES = Path(__file__).with_name("entry_points.py")
#: An RTX 4090's generation with little memory: 1,000 MiB, of which a context takes 50.
DEVICE = NullDevice(
    name="Some GPU",
    capability=(8, 9),
    num_sms=46,
    max_threads_per_sm=1536,
    memory_bytes=1000 << 20,
    context_bytes=50 << 20,
    cudnn_workspace_bytes=3 << 20,
)
try:
    TORCH = installed()
    BUILT = libraries(TORCH)
except NotModelled as reason:
    pytest.skip(str(reason), allow_module_level=True)
STRONG, WEAK = "T", "W"


def symbols(kind):
    """What the stand-ins define: written by hand (strong) or generated (weak)."""
    found = set()
    for path in BUILT:
        lines = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
        rows = (line.split() for line in lines.splitlines())
        found |= {row[-1].partition("@")[0] for row in rows if row[-2] == kind}
    return found


def verdicts():
    done = subprocess.run(
        [sys.executable, str(CASES), str(BUILT[0].parent / MANIFEST)],
        env={"PYTHONPATH": str(CASES.parent), **DEVICE.variables()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


VERDICTS = verdicts()
HAND_WRITTEN = sorted(symbols(STRONG))


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_a_hand_written_entry_point_does_what_its_case_says(name):
    assert name in VERDICTS, f"{name} has no case in {CASES.name}"
    assert VERDICTS[name] == ""


def test_there_are_cases_for_real_entry_points_only():
    either = {
        "cudaGetDeviceProperties",
        "cudaGetDeviceProperties_v2",
        "cudaStreamGetCaptureInfo",
        "cudaStreamGetCaptureInfo_v2",
    }
    assert set(VERDICTS) - set(HAND_WRITTEN) <= either


def test_every_symbol_that_torch_names_is_there():
    defined = symbols(STRONG) | symbols(WEAK)
    for library in stand_ins(TORCH):
        assert set(library.symbols) - defined == set()
    assert len(defined) > 500


def test_the_library_stays_readable():
    sources = Path(__file__).parents[2] / "validate" / "null" / "csrc"
    texts = [path.read_text() for path in sources.rglob("*") if path.is_file()]
    assert sum(text.count("\n") for text in texts) < 1000
    assert max(len(line) for text in texts for line in text.splitlines()) <= 120
