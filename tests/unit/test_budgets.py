"""The size of the project stays within its budgets, which are lowered when something goes."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: What is counted over knot_runner/ -> the most that is allowed.
PACKAGE = {
    "nodes": 324_450,
    "statement lines": 26_540,
    "conditional expressions per 1,000 statement lines": 14.3,
    "comprehensions per 1,000 statement lines": 41.3,
    "comprehensions that hold another per 1,000 statement lines": 0.2,
    "string subscripts": 447,
    '.get("...")': 132,
    "Any": 301,
    "type: ignore": 2,
}
#: Nodes of scripts/, and lines of tests/.
SCRIPTS, TESTS = 31_320, 35_010
METHOD_FILES = 50
#: Percentage of public functions with a docstring, at least.
DOCUMENTED = 95


def counted(folder: str) -> Counter[str]:
    """Return the counts of the Python files below ``folder``."""
    total: Counter[str] = Counter()
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        total["statement lines"] += statement_lines(text, tree)
        total["type: ignore"] += text.count("# type: ignore")
        for node in ast.walk(tree):
            total["nodes"] += 1
            count(node, total)
    return total


def count(node: ast.AST, total: Counter[str]) -> None:
    if isinstance(node, ast.IfExp):
        total["conditional expressions"] += 1
    if isinstance(node, COMPREHENSIONS):
        total["comprehensions"] += 1
        inside = [part for part in ast.walk(node) if isinstance(part, COMPREHENSIONS)]
        total["comprehensions that hold another"] += len(inside) > 1
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        total["string subscripts"] += isinstance(node.slice.value, str)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        total['.get("...")'] += bool(node.args) and isinstance(node.args[0], ast.Constant)
    if isinstance(node, ast.Name):
        total["Any"] += node.id in ("Any", "cast")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
        total["public functions"] += 1
        total["documented"] += ast.get_docstring(node) is not None


def statement_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines that are not blank, comment, docstring or import."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, node.end_lineno + 1))
        documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        if documented and ast.get_docstring(node) is not None:
            first = node.body[0]
            skipped.update(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and at not in skipped for at, line in lines)


def test_package_is_within_its_budget_and_documented():
    package, share, over = counted("knot_runner"), " per 1,000 statement lines", {}
    for name, most in PACKAGE.items():
        found = package[name.removesuffix(share)]
        if name.endswith(share):
            found *= 1000 / package["statement lines"]
        if found > most:
            over[name] = found
    assert not over
    assert 100 * package["documented"] >= DOCUMENTED * package["public functions"]


def test_scripts_and_tests_stay_within_their_budgets():
    assert counted("scripts")["nodes"] <= SCRIPTS
    assert sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py")) <= TESTS


def test_conf_method_files_stay_within_budget():
    assert len(list((ROOT / "conf" / "method").rglob("*.yaml"))) <= METHOD_FILES
