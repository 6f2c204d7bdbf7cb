"""Mutation testing: does the nearest test notice a one-line mistake? Not part of the suite; run it by hand.

    python tests/mutants.py                        every mutant of tests/mutations/*.yaml
    python tests/mutants.py knot claims            those files only
    python tests/mutants.py knot --only=fold       those whose line holds that text
    python tests/mutants.py --every=3              each third
    python tests/mutants.py --tests=unit/report    those that tests of a folder or file are to kill
    python tests/mutants.py --workers=2 --all      whole test folders instead of the nearest tests
    python tests/mutants.py --draw=200 --seed=HEX --log=FILE    random ones (drawn_mutants.py), resumed from FILE

A mutant is a file, a piece of text that stands in it once (``from``), what replaces it (``to``), and the tests that
are expected to fail then; without a mutant they must pass, which is tried first (``--no-control``: is not). Each runs
in a copy of the checkout, in a process forked from one that has imported the libraries. Exit code 1 where fewer than
90% are killed, one cannot be applied, or tests fail by themselves.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from tests.drawn_mutants import draw, nearest  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("knot_runner", "conf", "tests", "scripts", "pyproject.toml", "README.md")
#: What nearly every test imports: once for all mutants.
PRELOADED = ["torch", "torch._dynamo", "hydra", "hypothesis", "numpy", "ot", "scipy.stats", "sklearn.metrics"]
PRELOADED += ["rich.console"]
#: Seconds of processor time that the tests of one mutant may take; a mutant that runs for ever is noticed, too.
TIMEOUT = 240
ENOUGH = 0.9


@dataclass(frozen=True)
class Mutant:
    """One wrong line: in ``file``, ``old`` is replaced by ``new``; ``tests``: pytest's arguments, one or more."""

    area: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    drawn: str = ""

    @property
    def control(self) -> bool:
        """Whether nothing is changed: the tests must pass."""
        return not self.file

    def __str__(self) -> str:
        if self.control:
            return f"control: {' '.join(self.tests)}"
        return self.drawn or f"{self.file}: {' '.join(self.old.split())}  ->  {' '.join(self.new.split())}"


def read(area: Path) -> list[Mutant]:
    """The mutants of ``tests/mutations/<area>.yaml``: file -> {tests: [...], mutants: [{from, to, tests?}]}."""
    found = []
    for file, group in yaml.safe_load(area.read_text(encoding="utf-8")).items():
        for one in group["mutants"]:
            tests = tuple(one.get("tests", group.get("tests", ())))
            found.append(Mutant(area.stem, file, str(one["from"]), str(one["to"]), tests))
    return found


def applied(mutant: Mutant, root: Path) -> str:
    """Write the mutant into the copy ``root``; returns the file's own text. Raises ``ValueError`` where it cannot."""
    path = root / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"its text stands {text.count(mutant.old)} times in {mutant.file}, not once")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return text


def verdict(mutant: Mutant, root: Path) -> tuple[str, float]:
    """killed, survived, or why it could not be tried; and the seconds it took."""
    began = time.monotonic()
    if mutant.control:
        code = _forked(root, mutant.tests)
        state = "passed" if code == 0 else f"its tests fail without a mutant (exit code {code})"
        return state, time.monotonic() - began
    try:
        own = applied(mutant, root)
    except (OSError, ValueError) as problem:
        return str(problem), 0.0
    try:
        code = _forked(root, mutant.tests)
    finally:
        (root / mutant.file).write_text(own, encoding="utf-8")
    names = {0: "survived", 1: "killed", 2: "killed", 4: "no such test", 5: "no such test", -9: "killed", -24: "killed"}
    if mutant.drawn and code == 4:  # not even conftest.py can be imported
        return "killed", time.monotonic() - began
    return names.get(code, f"pytest ended with {code}"), time.monotonic() - began


def _forked(root: Path, tests: tuple[str, ...]) -> int:
    """Exit code of pytest in a child of this process; the child and all it started are ended after TIMEOUT."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT, TIMEOUT))
        os._exit(_pytest(root, tests))
    deadline = time.monotonic() + 4 * TIMEOUT  # for a busy machine; its own processor time ends it sooner
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what a failed test left running
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -9


def _pytest(root: Path, tests: tuple[str, ...]) -> int:
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = True  # a mutant's bytecode must not outlive it
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    quiet = Path(os.devnull).open("w")  # noqa: SIM115  the process ends with it
    os.dup2(quiet.fileno(), 1)
    os.dup2(quiet.fileno(), 2)
    with contextlib.redirect_stdout(io.StringIO()):
        return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))


def _worker(todo: Any, done: Any) -> None:
    for name in PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        root.mkdir()
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, root / name, **({"ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}))
        while (mutant := todo.get()) is not None:
            done.put((mutant, *verdict(mutant, root)))


def main(arguments: list[str]) -> int:
    """Try all mutants asked for; prints one line each and the score; returns the exit code."""
    if "--help" in arguments:
        print(__doc__)
        return 0
    flags = dict(a.removeprefix("--").partition("=")[::2] for a in arguments if a.startswith("--"))
    areas = [a for a in arguments if not a.startswith("--")] or [p.stem for p in (ROOT / "tests/mutations").glob("*")]
    mutants = [m for area in sorted(areas) for m in read(ROOT / f"tests/mutations/{area}.yaml")]
    if "draw" in flags:
        mutants = []
        for file, line, text, change in draw(int(flags["draw"]), int(flags["seed"], 16)):
            tests = nearest(file, line, flags.get("coverage", ""))
            mutants.append(Mutant("drawn", file, (ROOT / file).read_text(encoding="utf-8"), text, tests, change))
        flags["no-control"] = ""
    log = Path(flags.get("log", os.devnull))
    states = dict(reversed(line.split("\t")) for line in log.read_text().splitlines()) if log.is_file() else {}
    found = [(m, states[str(m)]) for m in mutants if str(m) in states]
    mutants = [m for m in mutants if str(m) not in states and flags.get("only", "") in str(m)]
    mutants = [m for m in mutants if flags.get("tests", "") in " ".join(m.tests)]
    mutants = mutants[:: int(flags.get("every", 1))]
    if "all" in flags:
        mutants = [Mutant(m.area, m.file, m.old, m.new, ("tests",)) for m in mutants]
    if "no-control" not in flags:
        controls = [Mutant("control", "", "", "", tests) for tests in dict.fromkeys(m.tests for m in mutants)]
        mutants = [*controls, *mutants]
    data = os.environ.get("KNOT_DATA") or str(ROOT.parent / "shared" / "data")
    os.environ["KNOT_DATA"] = data  # the copies lie elsewhere
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    workers = [context.Process(target=_worker, args=(todo, done)) for _ in range(int(flags.get("workers", 1)))]
    for item in [*mutants, *[None] * len(workers)]:
        todo.put(item)
    for worker in workers:
        worker.start()
    for number in range(1, len(mutants) + 1):
        mutant, state, seconds = done.get()
        found.append((mutant, state))
        with log.open("a") as file:
            file.write(f"{state}\t{mutant}\n")
        print(f"[{number}/{len(mutants)}] {state} ({seconds:.1f} s) {mutant}", flush=True)
    for worker in workers:
        worker.join()
    return summary(found)


def summary(found: list[tuple[Mutant, str]]) -> int:
    """Print the score per area and in all, and what was not killed; returns the exit code."""
    broken = [f"{state}: {mutant}" for mutant, state in found if state not in ("killed", "survived", "passed")]
    found = [(mutant, state) for mutant, state in found if not mutant.control]
    for area in sorted({mutant.area for mutant, _ in found}):
        own = [state for mutant, state in found if mutant.area == area]
        print(f"{area}: {own.count('killed')} of {len(own)}")
    killed = sum(state == "killed" for _, state in found)
    print(f"killed {killed} of {len(found)} ({killed / max(len(found), 1):.1%})")
    for line in [*broken, *(f"survived: {mutant}" for mutant, state in found if state == "survived")]:
        print(f"  {line}")
    return int(bool(broken) or killed < ENOUGH * len(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
