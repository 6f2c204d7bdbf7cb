"""Imports go down only, so that each floor can be read, tested and replaced without the ones above it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "knot_runner"
#: Floors from the ground up; a module may import its own floor and those below.
FLOORS = [
    {"errors", "strict", "files", "memory", "processes", "streams"},
    {"settings"},
    {"measures", "records", "stale", "transport", "models", "tasks"},
    {"engine", "tracker"},
    {"methods", "report"},
    {"prepare", "evaluate", "temperature"},
    {"pipelines"},
    {"run"},
    {"listing", "misspelt", "compose", "progress"},
    {"show", "estimate"},
    {"sweep"},
    {"launch"},
    {"verbs"},
    {"cli"},
    {"__main__"},
]


def imported(path):
    """Names of our modules that ``path`` imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" if node.module == "knot_runner" else node.module or ""
                     for alias in node.names]  # fmt: skip
        for name in names:
            if name.startswith("knot_runner."):
                yield name.split(".")[1]


def test_imports_go_down_only():
    height = {name: level for level, names in enumerate(FLOORS) for name in names}
    seen = set()
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        seen.add(own)
        for other in imported(path):
            if other != "__version__":
                assert height[other] <= height[own], f"{path.relative_to(PACKAGE)} imports {other}, which is above it"
    assert seen <= set(height) and set(height) - seen <= {"conf"}


def test_reports_read_records_only():
    for path in (PACKAGE / "report").glob("*.py"):
        assert not set(imported(path)) & {"methods", "engine", "models", "run", "tasks", "transport"}
        assert "import torch" not in path.read_text()


def test_nothing_executes_what_a_file_may_carry():
    """No pickle, eval, unsafe YAML, shells or archive extraction anywhere in the package."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for word in (
            "pickle.load",
            "torch.load(",
            "yaml.load(",
            "shell=True",
            "extractall",
            "_target_",
        ):
            assert word not in text, f"{path}: {word}"


def test_no_code_is_made_from_text():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), f"{path}:{node.lineno}"
