"""Mutants that a seed draws: one per statement line of the code that gives numbers, or of a preset's YAML.

Operators: a comparison, ``and``/``or``/``not``, arithmetic, a constant, ``min``/``max`` and ``any``/``all``, the first
two arguments of a call, a deleted statement; in YAML a number, ``true``/``false`` and ``higher``/``lower``.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AREAS = ("engine/**/*.py", "methods/**/*.py", "transport/**/*.py", "results/**/*.py", "records.py", "sweeps/**/*.py",
         "report/statistics/*.py", "config/settings/**/*.py")  # fmt: skip
SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is",
         "in": "not in", "not in": "in", "and": "or", "or": "and", "+": "-", "-": "+", "*": "/", "/": "*", "//": "*",
         "%": "*", "**": "*", "&": "|"}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
WORDS = {"true": "false", "false": "true", "higher": "lower", "lower": "higher"}
#: (line, first column, end column, what stands there then)
Change = tuple[int, int, int, str]


def draw(count: int, seed: int) -> list[tuple[str, int, str, str]]:
    """Return (file, line, text of the file with it changed, the change in words) of ``count`` lines, by ``seed``."""
    paths = {path for area in AREAS for path in (ROOT / "knot_runner").glob(area)}
    candidates: dict[tuple[Path, int], list[Change]] = {}
    for path in sorted([*paths, *(ROOT / "conf" / "experiment").rglob("*.yaml")]):
        text = path.read_text(encoding="utf-8")
        for change in python_changes(text) if path.suffix == ".py" else yaml_changes(text):
            candidates.setdefault((path, change[0]), []).append(change)
    rng = random.Random(seed)
    drawn = []
    for path, line in rng.sample(sorted(candidates), count):
        _, start, end, new = rng.choice(candidates[path, line])
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        old = lines[line - 1]
        lines[line - 1] = (old.encode()[:start] + new.encode() + old.encode()[end:]).decode()
        file = str(path.relative_to(ROOT))
        drawn.append((file, line, "".join(lines), f"{file}:{line}: {old.strip()}  ->  {lines[line - 1].strip()}"))
    return drawn


def python_changes(text: str) -> Iterator[Change]:
    """Yield every change of one line of a module, its annotations, decorators and docstrings aside."""
    tree, lines = ast.parse(text), text.encode().split(b"\n")
    skipped = {id(inner) for node in ast.walk(tree) for part in _not_run(node) for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if id(node) in skipped or getattr(node, "lineno", None) != getattr(node, "end_lineno", 0):
            continue
        line, start, end = node.lineno, node.col_offset, node.end_col_offset
        if isinstance(node, ast.Compare):
            yield from _operator(lines, node.left, node.comparators[0])
        elif isinstance(node, ast.BinOp):
            yield from _operator(lines, node.left, node.right)
        elif isinstance(node, ast.BoolOp):
            yield from _operator(lines, node.values[0], node.values[1])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield line, start, end, ast.unparse(node.operand)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2 or 1.0
            yield line, start, end, repr(other)
        elif isinstance(node, ast.Name) and node.id in NAMES:
            yield line, start, end, NAMES[node.id]
        elif isinstance(node, ast.Call) and len(node.args) > 1 and not isinstance(node.args[1], ast.Starred):
            first, second = node.args[:2]
            either = isinstance(node.func, ast.Name) and node.func.id in NAMES  # min(a, b) is min(b, a)
            if not isinstance(first, ast.Starred) and not either:
                yield line, first.col_offset, second.end_col_offset, f"{ast.unparse(second)}, {ast.unparse(first)}"
        elif isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.Raise | ast.Continue | ast.Break):
            yield line, start, end, "pass"


def _not_run(node: ast.AST) -> list[ast.AST]:
    """The parts of a node that say types, docstrings, and guards that no result depends on: ``frozen``, ``strict``."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return [node]
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return [node.value]
    parts = [getattr(node, "annotation", None), getattr(node, "returns", None), *getattr(node, "decorator_list", [])]
    return [part for part in parts if isinstance(part, ast.AST)]


def _operator(lines: list[bytes], left: ast.expr, right: ast.expr) -> Iterator[Change]:
    """The operator between two operands, if it stands on their line."""
    if left.end_lineno == right.lineno:
        between = lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
        found = re.search(r"not in|is not|\b(is|in|and|or)\b|[<>=!]=?|\*\*|//|[-+*/%&]", between)
        if found and found[0] in SWAPS:
            start = left.end_col_offset + found.start()
            yield right.lineno, start, start + len(found[0]), SWAPS[found[0]]


def yaml_changes(text: str) -> Iterator[Change]:
    """Yield every change of a value of a preset; texts in quotes, names and comments stay."""
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r'"[^"]*"|#.*', lambda found: " " * len(found[0].encode()), line)
        for found in re.finditer(r"(?<![\w.])(\d+(?:\.\d+)?(?:e-?\d+)?|true|false|higher|lower)(?![\w.])", bare):
            word = found[0]
            other = WORDS.get(word) or (str(int(word) + 1) if word.isdigit() else str(float(word) * 2 or 1.0))
            yield number, found.start(), found.end(), other


def nearest(file: str, line: int, coverage_file: str = "", most: int = 8) -> tuple[str, ...]:
    """Pytest's arguments for the tests nearest to a line: small files and unit tests first, golden numbers last.

    Which run the line is read from ``coverage_file``, as ``coverage run`` with ``dynamic_context = test_function``
    writes it; without one, tests that import the module, or lie in its folder, are taken. Presets have their own.
    """
    if file.endswith(".yaml"):
        preset = file.removeprefix("conf/experiment/").removesuffix(".yaml")
        tests = ["tests/oracles/test_published.py", "tests/unit/report/claims/test_presets.py"]
        printed = f"tests/papers/{preset.split('/')[0]}/test_claims.py"
        return (
            *tests,
            *([printed] if (ROOT / printed).is_file() else []),
            "-k",
            f"{preset.replace('/', ' and ')} or planned_seeds or with_a_source or compose_runs",
        )
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    covering = _covering(coverage_file, file, line) if coverage_file else None
    parent, _, name = module.rpartition(".")
    folder = ROOT / "tests" / "unit" / file.removeprefix("knot_runner/").rpartition("/")[0]
    while not folder.is_dir():
        folder = folder.parent
    found = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text, own = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        direct = re.search(rf"{re.escape(module)}\b|from {re.escape(parent)} import .*\b{name}\b", text)
        if own in covering if covering is not None else direct or path.parent == folder:
            found.append((path.stem != f"test_{name}", not direct, not own.startswith("tests/unit/"), len(text), own))
    return (*(own for *_, own in sorted(found)[:most]), "tests/golden/test_golden.py", "-m", "not real_data")


def _covering(coverage_file: str, file: str, line: int) -> set[str]:
    """The test files that run a line."""
    import coverage

    data = coverage.CoverageData(coverage_file)
    data.read()
    contexts = data.contexts_by_lineno(str(ROOT / file)).get(line, [])
    return {f"{context.rpartition('.')[0].replace('.', '/')}.py" for context in contexts if context}
