"""Compile this folder's C++ code once for the machine, store the library, and call its functions.

The library depends on the CPU (``-march=native``). Its name in the user's cache folder contains a digest of the
sources, the compiler and the CPU, so that different machines can share a home folder.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch

from knot_runner.util.errors import UserError
from knot_runner.util.processes import temporary_folder

COMPILER_FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC")
REALS = {torch.float32: "float", torch.float64: "double"}
#: Number of values after the end of an array that the compiled passes may read (the width of the widest vector).
OVERREAD = 64

_HERE = Path(__file__).parent


@functools.cache
def native_library(dtype: torch.dtype) -> ctypes.CDLL:
    """Return the compiled passes for ``dtype`` (float32 or float64), from the cache folder if possible.

    Raises:
        UserError: No compiler exists, compilation fails, or the cache folder cannot be written.
    """
    compiler = find_compiler()
    command = [compiler, *COMPILER_FLAGS, f"-DREAL={REALS[dtype]}"]
    path = _cache_folder() / f"passes-{_digest(command)}.so"
    if not path.is_file():
        _compile(command, path)
    library = ctypes.CDLL(str(path))
    library.perceptron_epoch.restype = ctypes.c_double
    return library


def find_compiler() -> str:
    """Return the C++ compiler: ``CXX`` if set, otherwise the first of c++, g++ and clang++ that exists.

    Raises:
        UserError: No compiler was found.
    """
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        compiler = shutil.which(name)
        if compiler is not None:
            return compiler
    what = f"CXX={named} was not found" if named else "c++, g++ and clang++ were not found"
    raise UserError(f"the native engine needs a C++ compiler, but {what}. Use hardware.engine=lean", "hardware.engine")


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "knot_runner"


def _digest(command: list[str]) -> str:
    """Return the digest of the sources, the command, the compiler's version and the CPU's instructions."""
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.cpp")) + sorted(_HERE.glob("*.h")):
        digest.update(source.read_bytes())
    version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
    digest.update(repr((command, version, _instructions())).encode())
    return digest.hexdigest()[:20]


def _instructions() -> str:
    """Return a description of the CPU's instruction set; it differs if one CPU cannot run the code of another."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = ("flags", "Features", "model name", "CPU part")
    return repr(sorted({line for line in lines if line.startswith(named)}))


def _compile(command: list[str], path: Path) -> None:
    """Compile to ``path``. The file appears only when the compilation is complete.

    Raises:
        UserError: The compiler fails.
    """
    sources = [str(source) for source in sorted(_HERE.glob("*.cpp"))]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(path.parent) as folder:
            target = folder / path.name
            done = subprocess.run([*command, *sources, "-o", str(target)], capture_output=True, text=True, check=False)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
                raise UserError(
                    f"{command[0]} cannot compile the engine: {first}. Use hardware.engine=lean", "hardware.engine"
                )
            target.replace(path)
    except OSError as problem:
        raise UserError(
            f"the native engine cannot write its compiled code to {path.parent} ({problem.strerror}). "
            "Set XDG_CACHE_HOME to another folder, or use hardware.engine=lean",
            "hardware.engine",
        ) from None


def integers(*values: int) -> ctypes.Array[ctypes.c_int32]:
    """Return the values of a C structure whose fields are all ``int32_t``."""
    return (ctypes.c_int32 * len(values))(*values)


def address(tensor: torch.Tensor | None) -> ctypes.c_void_p:
    """Return the address of a contiguous tensor's values, or null for None."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
