"""Compiles the stand-ins of NVIDIA's libraries once per torch, and keeps them in the user's cache folder.

A stand-in has the file name and the symbol version of the library whose place it takes, what ``csrc/`` answers for it,
and for every other symbol that torch names a function that succeeds and writes nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vitmem.errors import NotModelled

from .torch_build import TorchBuild

__all__ = ["StandIn", "libraries", "stand_ins"]

SOURCES = Path(__file__).parent / "csrc"
CORE = "libvitmem_null.so"
MANIFEST = "preload.json"
#: Not in any wheel: they come with the driver. torch links to the first and opens the second by name.
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
_NO_KERNELS = ("libcudart.", "libcupti.", "libnccl.")  # their launches are written by hand
_DRIVER_SYMBOL = re.compile(r"cu[A-Z]\w*")

Symbol = tuple[str, str]  # name, version ("" without one)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """``soname`` is the file's name; ``symbols`` is what torch names of it."""

    soname: str
    version: str
    symbols: tuple[str, ...]

    @property
    def sources(self) -> list[Path]:
        """``libcudart.so.13`` is made from ``cudart_*.c``."""
        name = self.soname.removeprefix("lib").partition(".so")[0]
        return sorted(path for path in SOURCES.glob("*.c") if path.stem.partition("_")[0] == name)


def libraries(torch: TorchBuild) -> list[Path]:
    """The stand-ins for this torch in the order in which they are loaded; compiled where the cache has none."""
    folder = _cache_folder() / f"torch-{torch.version}-{_digest(torch)}"
    if re.search(r"[\s:]", str(folder)):
        raise NotModelled(f"the loader takes no blanks and colons: {folder}; set XDG_CACHE_HOME to another folder")
    if not (folder / MANIFEST).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            made = Path(work) / "made"
            made.mkdir()
            _make(torch, made)
            try:
                made.rename(folder)
            except OSError:  # another process was faster
                if not (folder / MANIFEST).is_file():
                    raise
    return [folder / name for name in json.loads((folder / MANIFEST).read_text())]


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitmem" / "null"


def _digest(torch: TorchBuild) -> str:
    """What the result depends on: our sources, and which torch it is."""
    digest = hashlib.sha256(f"{torch.cuda} {torch.site}".encode())
    for path in sorted(path for path in (*SOURCES.rglob("*"), Path(__file__)) if path.is_file()):
        digest.update(path.read_bytes())
    for path in torch.nvidia_libraries:
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    return digest.hexdigest()[:12]


def stand_ins(torch: TorchBuild) -> list[StandIn]:
    """What torch names, by the library that exports it; what none exports and is named so is the driver's."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        named = {symbol for found in pool.map(_undefined, torch.consumers) for symbol in found}
        exports = list(pool.map(_exported, torch.nvidia_libraries))
    made = []
    for path, exported in zip(torch.nvidia_libraries, exports):
        ours = {symbol for symbol in named & exported if symbol[1] or not symbol[0].startswith("_Z")}
        if ours:
            made.append(_stand_in(path.name, ours))
    unknown = {symbol for symbol in named.difference(*exports) if not symbol[1] and _DRIVER_SYMBOL.fullmatch(symbol[0])}
    return [*made, _stand_in(DRIVER[0], unknown), _stand_in(DRIVER[1], set())]


def _stand_in(soname: str, symbols: set[Symbol]) -> StandIn:
    (version,) = {version for _, version in symbols if version} or {""}
    return StandIn(soname=soname, version=version, symbols=tuple(sorted(name for name, _ in symbols)))


def _undefined(path: Path) -> set[Symbol]:
    return _symbols("--undefined-only", path)


def _exported(path: Path) -> set[Symbol]:
    return _symbols("--defined-only", path)


def _symbols(which: str, path: Path) -> set[Symbol]:
    """``nm`` writes ``name@version``, with two signs where it is the default one."""
    lines = _run([_tool("nm"), "-D", which, str(path)]).splitlines()
    names = (line.split()[-1].partition("@") for line in lines)
    return {(name, version.lstrip("@")) for name, _, version in names}


def _make(torch: TorchBuild, folder: Path) -> None:
    """All stand-ins and the list of them; the core and the runtime first, which the others are linked to."""
    compiler = [_tool("cc", "gcc", "clang"), "-shared", "-fPIC", "-O1", "-w", f"-I{SOURCES}", "-Wl,-rpath,$ORIGIN"]
    compiler += [f"-isystem{path}" for path in torch.include_folders]
    _run([*compiler, "-o", str(folder / CORE), f"-Wl,-soname,{CORE}", str(SOURCES / "core.c"), "-lpthread"])
    runtime, *others = sorted(stand_ins(torch), key=lambda library: not library.soname.startswith("libcudart."))
    _compile(compiler, folder, runtime, [CORE])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda library: _compile(compiler, folder, library, [CORE, runtime.soname]), others))
    (folder / MANIFEST).write_text(json.dumps([CORE, runtime.soname, *(library.soname for library in others)]))


def _compile(compiler: Iterable[str], folder: Path, library: StandIn, needed: Iterable[str]) -> None:
    generated = folder / f"{library.soname}.c"
    generated.write_text(_generated(library))
    command = [*compiler, "-o", str(folder / library.soname), f"-Wl,-soname,{library.soname}"]
    if library.version:
        script = folder / f"{library.soname}.map"
        script.write_text(f"{library.version} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={script}")
    linked = [str(folder / name) for name in needed]
    _run([*command, *map(str, library.sources), str(generated), *linked, "-ldl"])


def _generated(library: StandIn) -> str:
    """Weak, so that a function of ``csrc/`` wins; each tells once that it was called, and may have been a kernel."""
    counted = "" if library.soname.startswith(_NO_KERNELS) else "null_count_kernel(); "
    return "\n".join(
        [
            "void null_unanswered(const char *); void null_count_kernel(void);",
            "#define NULL_STUB(name) __attribute__((weak)) long name(void) { static char told; \\",
            f"{counted}if (!told) {{ told = 1; null_unanswered(#name); }} return 0; }}",
            *(f"NULL_STUB({name})" for name in library.symbols),
            "",
        ]
    )


def _tool(*names: str) -> str:
    asked = os.environ.get("CC") if "cc" in names else None
    for name in (asked, *names):
        if name and (found := shutil.which(name)):
            return found
    raise NotModelled(
        f"the null device is compiled on first use, and there is no {' or '.join(names)} here; install a C compiler "
        "with binutils (Debian and Ubuntu: apt install gcc)"
    )


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
        raise NotModelled(f"the null device cannot be compiled against this torch: {reason}")
    return done.stdout
