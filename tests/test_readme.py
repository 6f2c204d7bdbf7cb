"""Every command in README and the guides is run: the two set-up blocks by .ci/run, the others here."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import config_folder
from tests.sweep.grids import LAUNCHERS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
#: README's longest, in lines and bytes: a front page; and the largest pictures of it, in bytes.
FRONT_PAGE, FRONT_BYTES = 150, 9000
PICTURES = {"report.png": 300_000, "quickstart.svg": 100_000}


def blocks(guide: str, language: str = "bash") -> list[str]:
    """The blocks of code of a guide."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / guide).read_text(), flags=re.M | re.S)


BLOCKS = blocks("README.md")
ALLOW = "training.small_clients=allow"
SMALL_IMAGES = ["task.limit=300", "task.shape=[1,8,8]", "model.hidden=[8]", ALLOW]
#: Tasks whose commands are run as written but for less training of smaller models on fewer images.
SHORT = {
    "femnist": [*SMALL_IMAGES, "training.rounds=1"],
    "mnist kd": ["task.limit=300", "training.local.epochs=1", "training.distil.epochs=1"],
    "mnist_fedwad": [ALLOW, "task.limit=400", "task.shape=[1,8,8]", "partition.clients=10", "training.rounds=1"],
}
USES = [line for line in BLOCKS[2].splitlines() if line.strip()]
SWEEPS = [line for line in blocks("knot_runner/sweeps/README.md")[0].splitlines() if line.strip()]
BENCHMARKS = blocks("scripts/README.md")[-1].splitlines()
#: README and all guides; commands of measurements stand indented in their text.
GUIDES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("knot_runner", "conf", "scripts", "tests")
    for path in (ROOT / folder).rglob("*.md")
) + ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
RUN, SHOWN = r"(?:-m |check )?(?:experiment|task)=.*[^\\]", r"(?:claims|report|table) [a-z].*=.*[^\\]"
COMMAND = rf"^    (knot-runner (?:{RUN}|{SHOWN}))$"
MEASURED = [line for guide in GUIDES for line in re.findall(COMMAND, (ROOT / guide).read_text(), re.M)]


@pytest.mark.thorough
@pytest.mark.parametrize("line", MEASURED)
def test_commands_of_measurements_compose(line):
    words = [word for word in shlex.split(line)[1:] if not word.startswith(("seed=", "paths.data="))]
    if words[0] in ("claims", "report", "table"):
        words = [f"experiment={words[1]}", *words[2:]]
    words = [word for word in words if word not in ("-m", "check")]
    if importlib.util.find_spec("ray") is None:  # an extra that tests/sweep/test_ray.py has a fake of
        words = [word for word in words if word != "hydra/launcher=ray" and not word.startswith("hydra.launcher.addr")]
    if len(words) == 1 and words[0].startswith("experiment="):
        # tests/report/test_report_claims_presets.py composes every preset as it is
        assert (config_folder() / "experiment" / f"{words[0].removeprefix('experiment=')}.yaml").is_file()
        return
    jobs, _ = compose_all([*words, "seed=0"])
    assert jobs


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide):
    for link in re.findall(r"\]\(([^)]*)\)", (ROOT / guide).read_text()):
        if link.startswith("https://"):
            continue
        target, _, heading = link.partition("#")
        path = (ROOT / guide).parent / target if target else ROOT / guide
        assert path.is_file(), (guide, link)
        titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M) if path.suffix == ".md" else []
        anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not heading or heading in anchors, (target, heading, anchors)


def linked(guide: str) -> set[str]:
    """The guides that a guide links to."""
    found = re.findall(r"\]\(([^)#:]*\.md)", (ROOT / guide).read_text())
    return {str(((ROOT / guide).parent / link).resolve().relative_to(ROOT)) for link in found}


def test_readme_is_a_front_page():
    assert len(README.splitlines()) <= FRONT_PAGE and len(README.encode()) <= FRONT_BYTES
    pictures = {path.name: path.stat().st_size for path in (ROOT / "scripts" / "pictures").iterdir()}
    assert set(pictures) == set(PICTURES) == set(re.findall(r"!\[.*\]\(scripts/pictures/(.*)\)", README))
    assert all(pictures[name] <= PICTURES[name] for name in PICTURES)
    guides = linked("README.md")
    assert "conf/README.md" in guides
    own = {guide for guide in GUIDES if "/" in guide}
    assert own <= guides.union(*map(linked, guides))  # each is found from there, or from the next one


def test_the_first_two_blocks_are_those_that_ci_runs():
    assert BLOCKS[0].endswith("&& .venv/bin/knot-runner\n")
    # three workers for two cores: some tests wait
    assert BLOCKS[1].endswith("&& .venv/bin/python -m pytest -n 3 --dist worksteal\n")
    assert "readme_command 1" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("line", USES)
def test_commands_compose_and_name_what_there_is(line, tmp_path, capsys):
    """Runs are made as written but for less training, or composed by ``check`` (test_cli runs their kind)."""
    program, *arguments = shlex.split(line)
    assert program == "knot-runner"
    if arguments == ["ls"]:
        assert main(arguments) == 0
        return
    named = dict(word.split("=", 1) for word in arguments if "=" in word)
    task, method = named["task"], named.get("method", "")
    short = SHORT.get(f"{task} {method}", SHORT.get(task))
    if short is not None:
        given = [argument for argument in arguments if not argument.startswith("training.rounds=")]
        assert main([*given, *short, "hardware.workers=1", f"paths.out={tmp_path}"]) == 0
        return
    assert main(["check", "--quick", *arguments]) == 0, capsys.readouterr()


@pytest.mark.thorough
def test_the_commands_on_sweeps_run_one_after_another(tmp_path):
    """Here without launchers of others, which tests/sweep runs: with these very overrides."""
    for line in SWEEPS:
        program, *arguments = shlex.split(line)
        assert program == "knot-runner"
        launched = [word for word in arguments if word.startswith("hydra")]
        assert not launched or any(own[: len(launched)] == launched for own in LAUNCHERS.values())
        own = [word for word in arguments if word not in launched]
        small = [] if arguments[0] == "compare" else SMALL_IMAGES
        quick = ["--quick"] if arguments[0] == "check" else []
        assert main([*own, *quick, *small, f"paths.out={tmp_path}"]) == 0, line
    assert (tmp_path / "reports" / "chill/table1.html").exists() and (tmp_path / "claims" / "chill/table1.md").exists()


@pytest.fixture
def bench(monkeypatch):
    """``scripts/bench.py`` as a module."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("bench")


@pytest.mark.parametrize("line", BENCHMARKS)
def test_benchmarks_are_there_and_have_these_options(line, bench):
    """That they can be imported and take the options; running all of them takes a minute."""
    program, script, *arguments = shlex.split(line)
    assert (program, script) == ("python", "scripts/bench.py")
    assert callable(importlib.import_module(bench.BENCHES[bench.parsed(arguments).bench]).main)


@pytest.mark.thorough
def test_a_benchmark_runs(bench, capsys, monkeypatch):
    sinkhorn = importlib.import_module(bench.BENCHES["sinkhorn"])
    monkeypatch.setattr(sinkhorn, "TRAINED", sinkhorn.TRAINED[:1])
    threads = torch.get_num_threads()
    bench.main(["sinkhorn", "--problems", "32", "--repeats", "1", "--epsilons", "1"])
    torch.set_num_threads(threads)
    solvers, _, trained = capsys.readouterr().out.partition("batches as trained")
    header, _, *rows = solvers.splitlines()
    assert trained.count(" 16 x 3 | ") == 3
    assert "newton" in header and [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert all(row.endswith("32 of 32, 32 agree") for row in rows)


@pytest.mark.thorough
def test_the_python_examples_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs, distance = blocks("knot_runner/README.md", "python")
    exec(compile(runs, "knot_runner/README.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("outputs/femnist/fedavg_chill/") and shown[0].endswith(" 2")
    assert any("metrics.accuracy.ALL" in line for line in shown)
    exec(compile(distance, "knot_runner/README.md", "exec"), {})
    value, server_only, first, last = map(float, capsys.readouterr().out.split())
    assert 0.9 < server_only / value < 1 and value <= last < first
