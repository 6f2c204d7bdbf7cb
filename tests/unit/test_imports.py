"""Imports go down only, so that each floor can be read, tested and replaced without the ones above it."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.of_papers import WORDS

PACKAGE = Path(__file__).resolve().parents[2] / "knot_runner"
#: Floors from the ground up; a module may import its own floor and those below.
FLOORS = [
    {"util"},
    {"config"},
    {"metrics", "records", "results", "provenance", "transport", "models", "data", "composing"},
    {"engine"},
    {"methods", "report"},
    {"pipelines"},
    {"bundles", "sweeps"},
    {"cli", "python", "__main__"},
    {"testing"},
    {"papers"},
]


@cache
def parsed(path):
    return ast.parse(path.read_text())


def imported(path):
    """Names of our modules that ``path`` imports, wherever in the file."""
    for node in ast.walk(parsed(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" if node.module == "knot_runner" else node.module or ""
                     for alias in node.names]  # fmt: skip
        for name in names:
            if name.startswith("knot_runner."):
                yield name.split(".")[1]


def modules(pattern):
    """The package's files of a glob, of which there are some."""
    paths = sorted(PACKAGE.glob(pattern))
    assert len(paths) > 10
    return paths


def test_imports_go_down_only():
    height = {name: level for level, names in enumerate(FLOORS) for name in names}
    seen = set()
    for path in modules("**/*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        seen.add(part)
        for other in imported(path):
            if other != "__version__":
                assert height[other] <= height[part], f"{path.relative_to(PACKAGE)} imports {other}, which is above it"
    assert seen <= set(height) and set(height) - seen <= {"conf"}


@pytest.mark.paper(*WORDS)
def test_papers_import_no_other_paper():
    for path in modules("papers/*/*.py"):
        papers = re.findall(r"knot_runner\.papers\.(\w+)", path.read_text())
        assert set(papers) <= {path.parent.name}, path


def test_reports_read_records_only():
    for path in modules("report/**/*.py"):
        assert not set(imported(path)) & {"methods", "engine", "models", "pipelines", "data", "transport"}
        assert "import torch" not in path.read_text()


#: What reads or runs more than data: pickles, shells, archives that name their own paths, YAML with Python in it.
PICKLES = {"pickle", "cPickle", "dill", "marshal"}
DANGEROUS = {
    "load": PICKLES | {"joblib", "torch", "yaml", "hub", "np", "numpy", "shelve"},
    "loads": PICKLES,
    **dict.fromkeys(("unsafe_load", "full_load"), {"yaml"}),
    **dict.fromkeys(("system", "popen"), {"os"}),
}
NEVER_CALLED = {"extractall", "read_pickle", "load_inline", "__import__", "Unpickler"}
#: Builtins; a model's ``eval`` is another.
CODE = {"eval", "exec", "compile"}


def calls(tree):
    """(line, name of what it is called on, name, keywords) of every call in ``tree``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if isinstance(node.func, ast.Name):
            yield node.lineno, "", node.func.id, keywords
        elif isinstance(node.func, ast.Attribute):
            yield node.lineno, ast.unparse(node.func.value).split(".")[-1], node.func.attr, keywords


def test_package_executes_nothing_from_files():
    """No pickle, eval, unsafe YAML, shells or archive extraction anywhere in the package, and no class by its name."""
    for path in modules("**/*.py"):
        for line, owner, name, keywords in calls(parsed(path)):
            where = f"{path}:{line}: {owner}.{name}"
            assert owner not in DANGEROUS.get(name, ()), where
            assert name not in NEVER_CALLED and (owner or name not in CODE), where
            assert keywords.get("shell", "False") == "False", where
            assert keywords.get("allow_pickle", "False") == "False", where
            assert keywords.get("trust_remote_code", "False") == "False", where
        assert "_target_" not in path.read_text() or path.name in REFUSES_TARGETS, path


#: Files that name ``_target_`` in order to refuse it.
REFUSES_TARGETS = ("overrides.py",)


def test_calls_finds_planted_code_execution():
    """The test above is worth what it notices."""
    for text in (
        "import pickle\npickle.load(f)", "import torch\ntorch.load(p)", "yaml.load(t)", "eval('1')",
        "tar.extractall(x)", "subprocess.run(c, shell=True)", "np.load(p, allow_pickle=True)",
    ):  # fmt: skip
        named = list(calls(ast.parse(text)))
        assert any(
            owner in DANGEROUS.get(name, ()) or name in NEVER_CALLED | CODE or {"shell", "allow_pickle"} & set(keywords)
            for _, owner, name, keywords in named
        ), text


#: Names that several modules have because they are one contract: what a federated method, or KNOT, consists of.
CONTRACT = {"init", "plan", "message", "fold", "deployed", "keep", "received", "ask", "answer"}


def public_names(path):
    """Public functions, classes and constants that a module defines."""
    for node in parsed(path).body:
        for target in (node, *getattr(node, "targets", ()), getattr(node, "target", None)):
            name = getattr(target, "name", getattr(target, "id", "_"))
            if not name.startswith("_"):
                yield name


def test_public_names_are_unique_in_the_package():
    places = {}
    for path in modules("**/*.py"):
        for name in set(public_names(path)):
            places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1 and name not in CONTRACT}
    assert not twice


#: Folders whose files lie in rooms.
HOUSES = ("pipelines", "config/settings", "engine/federated")


def run_time_imports(tree):
    """The modules that ``tree`` imports when it runs: those for type checking aside."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from run_time_imports(node)


def room_of(parts, house):
    """A folder of ``house`` by its name, or a loose file by its own; ``parts``: of a path or a module below it."""
    folder = PACKAGE.joinpath(house)
    depth = 0
    while depth < len(parts) and folder.joinpath(*parts[: depth + 1]).is_dir():
        depth += 1
    return "/".join(parts[:depth]) if depth else parts[0]


@pytest.mark.parametrize("house", HOUSES)
def test_rooms_import_one_another_without_cycles(house):
    """Lazy imports count, too: a room can be read after those that it uses."""
    below, uses = f"knot_runner.{house.replace('/', '.')}.", {}
    for path in modules(f"{house}/**/*.py"):
        if path.name == "__init__.py":
            continue
        room = room_of(path.relative_to(PACKAGE / house).with_suffix("").parts, house)
        imports = run_time_imports(parsed(path))
        others = {room_of(name.removeprefix(below).split("."), house) for name in imports if name.startswith(below)}
        uses.setdefault(room, set()).update(others - {room})
    TopologicalSorter(uses).prepare()  # raises CycleError


FEDAVG_RUN = """
import sys, knot_runner
knot_runner.run(["task=femnist", "task.max_examples=300", "partition.embedded_clients=6", "method=fedavg",
                 "training=quick", "training.rounds=1", "hardware=cpu", f"paths.output_dir={sys.argv[1]}"])
print(sum(name.partition(".")[0] == "knot_runner" for name in sys.modules))
"""


def test_fedavg_run_imports_few_modules(tmp_path):
    """What other methods, tasks, engines and reports need is imported by runs that have them."""
    done = subprocess.run([sys.executable, "-c", FEDAVG_RUN, tmp_path], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= 90
