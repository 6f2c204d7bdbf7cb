"""Mutation testing: change one line at a time, and list the changes that no test notices.

    python scripts/mutate.py                  every mutant of tests/mutations/*.yaml
    python scripts/mutate.py knot claims      those of two files
    python scripts/mutate.py --draw=200 --seed=$(git rev-parse HEAD) --log=FILE    random ones

Random mutants (``pip install -e ".[dev,mutate]"``) change lines of the code that computes results, and of presets.
The operators are those of mutmut without changes of texts: a number + 1, ``True``/``False``, the opposite comparison,
arithmetic or logical operator, an argument removed or ``None``, an assignment of ``None``, one branch of a conditional
expression, ``break``/``continue``. In YAML, numbers, ``true``/``false`` and ``higher``/``lower`` change. The nearest
tests import the module, or, with ``--coverage``, run the line.

First, the tests must pass without a mutant. Each mutant is tested in a copy of the checkout, in a forked process. In
FILE, you can replace ``survived`` by ``equivalent: PROOF``. The exit code is 1 if fewer than 90% of the others are
killed, more than 5% are equivalent, or tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
#: Imported once for all mutants, because nearly every test needs them.
PRELOADED = ("torch._dynamo", "hydra", "hypothesis", "ot", "scipy.stats", "sklearn.metrics", "rich.console")
#: Seconds of processor time for the tests of one mutant, which may loop forever.
TIMEOUT = 240
ENOUGH, MOST_EQUIVALENT = 0.9, 0.05
#: The code that computes results, and presets.
DRAWN = (*(f"knot_runner/{folder}/**/*.py" for folder in ("engine", "methods", "transport", "results", "sweeps")),
         "knot_runner/records.py", "knot_runner/report/statistics/*.py", "knot_runner/config/settings/**/*.py",
         "conf/experiment/**/*.yaml")  # fmt: skip
VALUE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:e-?\d+)?|true|false|higher|lower)(?![\w.])")
WORDS = {"true": "false", "false": "true", "higher": "lower", "lower": "higher"}
TESTS_OF_PRESETS = ("tests/oracles/test_published.py", "tests/unit/report/claims/test_presets.py", "tests/papers",
                    "-k", "published or presets or claims")  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A file with one mistake, and pytest's arguments for the tests that must notice it."""

    name: str
    file: str
    text: str
    tests: tuple[str, ...]


def main() -> int:
    """Test all mutants asked for and print each result and the score; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", help="files of tests/mutations, without .yaml")
    parser.add_argument("--only", default="", help="text in the mutant's line")
    parser.add_argument("--tests", default="", help="text in the paths of its tests")
    parser.add_argument("--slice", default="1/1", help="I/N: the I-th of N slices; run them at once")
    parser.add_argument("--draw", type=int, default=0, metavar="COUNT", help="random mutants instead of listed ones")
    parser.add_argument("--seed", help="of random mutants, a hexadecimal number")
    parser.add_argument("--coverage", metavar="RECORDING", help="the lines that each test runs")
    parser.add_argument("--log", type=Path, default=Path(os.devnull), metavar="FILE", help="results, to resume from")
    options = parser.parse_args()
    if options.draw:
        mutants = drawn(options.draw, int(options.seed, 16), options.coverage)
    else:
        areas = options.areas or sorted(path.stem for path in (ROOT / "tests/mutations").glob("*.yaml"))
        mutants = [mutant for area in areas for mutant in named(area)]
    mutants = [m for m in mutants if options.only in m.name and options.tests in " ".join(m.tests)]
    part, _, parts = options.slice.partition("/")
    mutants = mutants[int(part) - 1 :: int(parts)]
    options.log.touch()
    states = dict(reversed(line.split("\t", 1)) for line in options.log.read_text().splitlines())
    untested = [mutant for mutant in mutants if mutant.name not in states]
    for name in PRELOADED:
        __import__(name)
    os.environ.setdefault("KNOT_DATA", str(ROOT.parent / "shared" / "data"))  # the copy lies elsewhere
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ignored = shutil.ignore_patterns(".*", "__pycache__", "outputs", "multirun")
        shutil.copytree(ROOT, root, ignore=ignored, dirs_exist_ok=True)
        if not pass_without_mutant(untested, root):
            sys.exit("tests fail without a mutant")
        for number, mutant in enumerate(untested, 1):
            began = time.monotonic()
            (root / mutant.file).write_text(mutant.text, encoding="utf-8")
            state = "killed" if run_tests(root, mutant.tests) else "survived"
            shutil.copy(ROOT / mutant.file, root / mutant.file)
            states[mutant.name] = state
            with options.log.open("a") as log:
                log.write(f"{state}\t{mutant.name}\n")
            print(f"[{number}/{len(untested)}] {state} ({time.monotonic() - began:.1f} s) {mutant.name}", flush=True)
    return summary([(mutant.name, states[mutant.name]) for mutant in mutants])


def named(area: str) -> list[Mutant]:
    """Return the mutants of ``tests/mutations/<area>.yaml``: file -> {tests: [...], mutants: [{from, to, tests?}]}."""
    mutants = []
    content = yaml.safe_load((ROOT / f"tests/mutations/{area}.yaml").read_text(encoding="utf-8"))
    for file, group in content.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        for entry in group["mutants"]:
            old, new = str(entry["from"]), str(entry["to"])
            if text.count(old) != 1:
                raise ValueError(f"{area}: {old!r} occurs {text.count(old)} times in {file}, not once")
            name = f"{file}: {' '.join(old.split())}  ->  {' '.join(new.split())}"
            mutants.append(Mutant(name, file, text.replace(old, new), tuple(entry.get("tests") or group["tests"])))
    return mutants


def drawn(count: int, seed: int, recording: str | None) -> list[Mutant]:
    """Return random mutants, at most one for each line."""
    texts = {path: path.read_text(encoding="utf-8") for pattern in DRAWN for path in ROOT.glob(pattern)}
    lines = [(path, line) for path in sorted(texts) for line in range(1, texts[path].count("\n") + 1)]
    rng = random.Random(seed)
    rng.shuffle(lines)
    mutants: list[Mutant] = []
    while len(mutants) < count:
        path, line = lines.pop()
        file = path.relative_to(ROOT).as_posix()
        changes = python_changes(texts[path]) if path.suffix == ".py" else preset_changes(texts[path])
        if line not in changes:  # a comment, a docstring
            continue
        text = rng.choice(changes[line])()
        pairs = zip(texts[path].splitlines(), text.splitlines(), strict=False)
        old, new = next((old.strip(), new.strip()) for old, new in pairs if old != new)
        tests = nearest_tests(file, line, recording) if path.suffix == ".py" else TESTS_OF_PRESETS
        mutants.append(Mutant(f"{file}:{line}: {old}  ->  {new}", file, text, tests))
    return mutants


@functools.cache
def python_changes(text: str) -> dict[int, list[Callable[[], str]]]:
    """Return line -> functions that return the module with one change; annotations, decorators and texts stay."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.mutators import mutation_operators

    kept = (libcst.Annotation, libcst.Decorator, libcst.Import, libcst.ImportFrom, libcst.BaseString)
    wrapper = MetadataWrapper(libcst.parse_module(text))
    changes = defaultdict(list)

    class Visitor(libcst.CSTVisitor):
        METADATA_DEPENDENCIES = (PositionProvider,)

        def on_visit(self, node: libcst.CSTNode) -> bool:
            if isinstance(node, kept):
                return False
            position = self.get_metadata(PositionProvider, node, None)
            if position is None or isinstance(node, libcst.AnnAssign):  # a field's None would become ""
                return True
            for kind, operator in mutation_operators:
                for changed in operator(node) if isinstance(node, kind) else ():
                    replace = functools.partial(wrapper.module.deep_replace, node, changed)
                    changes[position.start.line].append(lambda replace=replace: replace().code)
            return True

    wrapper.visit(Visitor())
    return changes


def preset_changes(text: str) -> dict[int, list[Callable[[], str]]]:
    """Return line -> functions that return the YAML with one other value; quoted texts, names and comments stay."""
    changes = defaultdict(list)
    for match in VALUE.finditer(re.sub(r'"[^"\n]*"|#.*', lambda match: " " * len(match[0]), text)):
        if match[0] in WORDS:
            other = WORDS[match[0]]
        else:
            other = str(int(match[0]) + 1) if match[0].isdigit() else str(2 * float(match[0]) or 1.0)
        changed = text[: match.start()] + other + text[match.end() :]
        changes[text.count("\n", 0, match.start()) + 1].append(lambda changed=changed: changed)
    return changes


def nearest_tests(file: str, line: int, recording: str | None) -> tuple[str, ...]:
    """Return pytest's arguments for the tests nearest to a line: small unit tests first, golden numbers last."""
    contexts = []
    if recording:
        from coverage import CoverageData

        data = CoverageData(recording)
        data.read()
        contexts = [context for context in data.contexts_by_lineno(str(ROOT / file)).get(line, []) if context]
    running = {f"{context.rpartition('.')[0].replace('.', '/')}.py" for context in contexts}
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, name = module.rpartition(".")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(parent)} import .*\b{name}\b")
    folder = ROOT / "tests/unit" / Path(file).relative_to("knot_runner").parent
    ranked = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text, test = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        direct = bool(imports.search(text))
        if test in running or not running and (direct or path.parent == folder):
            ranked.append((path.stem != f"test_{name}", not direct, "/unit/" not in test, len(text), test))
    return (*(test for *_, test in sorted(ranked)[:8]), "tests/golden/test_golden.py", "-m", "not real_data")


def pass_without_mutant(mutants: list[Mutant], root: Path) -> bool:
    """Return whether the tests of all mutants pass, and show those that fail."""
    paths: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for mutant in mutants:
        tests = [argument for argument in mutant.tests if argument.startswith("tests/")]
        paths[mutant.tests[len(tests) :]].update(tests)  # the rest are options
    return all(run_tests(root, (*sorted(tests), *options), quiet=False) == 0 for options, tests in paths.items())


def run_tests(root: Path, tests: tuple[str, ...], quiet: bool = True) -> int:
    """Return the exit code of pytest in a copy of the checkout; negative if it was killed, as after TIMEOUT."""
    process = multiprocessing.get_context("fork").Process(target=run_pytest, args=(root, tests, quiet))
    process.start()
    process.join(4 * TIMEOUT if quiet else None)  # of waiting; usually the limit of processor time ends it
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # the tests, or processes that they have left
    process.join()
    return process.exitcode


def run_pytest(root: Path, tests: tuple[str, ...], quiet: bool) -> None:
    """Run pytest and exit with its code."""
    os.setsid()
    os.chdir(root)
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = True  # a mutant's bytecode must not outlive it
    os.environ.update(PYTHONPATH=str(root), PYTHONDONTWRITEBYTECODE="1")
    if quiet:
        resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT, TIMEOUT))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
    itself = "--ignore=tests/unit/test_mutate.py"  # fails for each listed mutant, which is applied already
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", itself, *tests]))


def summary(states: list[tuple[str, str]]) -> int:
    """Print the score and what was not killed; return the exit code."""
    killed = sum(state == "killed" for _, state in states)
    equivalent = sum(state.startswith("equivalent: ") for _, state in states)
    rest = len(states) - equivalent
    print(f"killed {killed} of {rest} ({killed / max(rest, 1):.1%}), {equivalent} equivalent")
    print("\n".join(f"  {state}: {name}" for name, state in states if state != "killed"))
    return int(killed < ENOUGH * rest or equivalent > MOST_EQUIVALENT * len(states))


if __name__ == "__main__":
    sys.exit(main())
