"""What a machine without a compiler, with a broken one, or without a cache folder is told; what is compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from knot_runner.engines.native import library
from tests.golden.messages import refuses
from tests.unit.engines.native_cases import needs_compiler

pytestmark = pytest.mark.machine

#: without what the process keeps of its first call
load = library.native_library.__wrapped__


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "knot_runner"


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_passes_are_compiled_once_for_each_dtype(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        library, "COMPILER_FLAGS", ("-std=c++17", "-O0", "-shared", "-fPIC")
    )  # compiles in a third of the time
    assert load(torch.float32).lanes() == 2 * load(torch.float64).lanes()
    kept = sorted(cache.iterdir())
    assert len(kept) == 2 and all(path.name.startswith("passes-") and path.suffix == ".so" for path in kept)
    monkeypatch.setattr(library, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load(torch.float32).lanes()
    assert sorted(cache.iterdir()) == kept


@needs_compiler
def test_another_cpu_has_passes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [library.find_compiler()]
    one = library._digest(command)
    assert library._digest(command) == one and library._digest([*command, "-O2"]) != one
    monkeypatch.setattr(library, "_instructions", lambda: "another")
    assert library._digest(command) != one


@needs_compiler
@pytest.mark.parametrize("name", ["passes.cpp", "passes.h"])
def test_changed_sources_are_compiled_anew(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_HERE", tmp_path)
    digests = set()
    for text in ("one", "another"):
        (tmp_path / name).write_text(text)
        digests.add(library._digest([library.find_compiler()]))
    assert len(digests) == 2


def test_native_library_suggests_another_engine_without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with refuses():
        load(torch.float32)
    monkeypatch.setenv("CXX", "no-such")
    with refuses():
        load(torch.float32)


def test_native_library_quotes_failing_compiler_and_leaves_nothing(cache, tmp_path, monkeypatch):
    script = 'echo "warning: x\nvectors.h:3: error: no vectors" >&2\n[ "$1" = --version ]'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    with refuses():
        load(torch.float32)
    assert list(cache.iterdir()) == []


def test_native_library_names_unwritable_cache_folder(cache, tmp_path, monkeypatch):
    cache.parent.write_text("a file")
    monkeypatch.setenv("CXX", compiler(tmp_path, "exit 0"))
    with refuses():
        load(torch.float32)
