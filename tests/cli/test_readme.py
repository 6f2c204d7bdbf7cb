"""Every command in README and the guides is run: README's first and last block by .ci/run, the others here."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import choices, config_folder, yaml_files
from tests.cli.sweep.grids import LAUNCHERS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
#: README's longest, in lines, and the largest picture, in bytes.
FRONT_PAGE, PICTURE = 160, 150_000


def blocks(guide: str, language: str = "bash") -> list[str]:
    """The blocks of code of a guide."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / guide).read_text(), flags=re.M | re.S)


BLOCKS = blocks("README.md")
ALLOW = "training.small_clients=allow"
SMALL_IMAGES = ["task.max_examples=300", "task.shape=[1,8,8]", "model.hidden=[8]", ALLOW]
#: Commands of README that train, each with settings for a smaller run of the same kind.
SHORT = {
    "task=folders": ["training.rounds=1", "training.clients_per_round=2", "model=cnn_4"],
    "task=csv": ["training.rounds=1", "training.clients_per_round=2"],
    "task=femnist": [*SMALL_IMAGES, "training.rounds=1"],
    "task=erc": ["task.max_examples=30", "training.rounds=1"],
    "task=mnist": ["task.max_examples=300", "training.local.epochs=1", "training.distill.epochs=1"],
    "experiment=federated/fedprox": [*SMALL_IMAGES, "training.rounds=2", "seed=0,1"],
}
FIRST, *COMMANDS, TESTS = BLOCKS
COMPARISON, OWN_DATA, USES, README_SWEEPS = (block.splitlines() for block in COMMANDS)
SWEEPS = [line for block in [*blocks("docs/sweeps.md"), blocks("docs/claims.md")[0]] for line in block.splitlines()]
BENCHMARKS = blocks("scripts/README.md")[-1].splitlines()
#: README and all guides; commands of measurements stand indented in their text.
GUIDES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("knot_runner", "conf", "docs", "scripts", "tests")
    for path in (ROOT / folder).rglob("*.md")
) + ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
RUN, SHOWN = r"(?:-m |check )?(?:experiment|task)=.*[^\\]", r"(?:claims|report|table) [a-z].*=.*[^\\]"
COMMAND = rf"^    (knot-runner (?:{RUN}|{SHOWN}))$"
MEASURED = [line for guide in GUIDES for line in re.findall(COMMAND, (ROOT / guide).read_text(), re.M)]


@pytest.mark.thorough
@pytest.mark.parametrize("line", MEASURED)
def test_commands_of_measurements_compose(line):
    words = [word for word in shlex.split(line)[1:] if not word.startswith(("seed=", "paths.data_dir="))]
    if words[0] in ("claims", "report", "table"):
        words = [f"experiment={words[1]}", *words[2:]]
    words = [word for word in words if word not in ("-m", "check")]
    if importlib.util.find_spec("ray") is None:  # an extra that tests/cli/sweep/test_ray.py has a fake of
        words = [word for word in words if word != "hydra/launcher=ray" and not word.startswith("hydra.launcher.addr")]
    if len(words) == 1 and words[0].startswith("experiment="):
        # tests/unit/report/claims/test_presets.py composes every preset as it is
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
    assert len(README.splitlines()) <= FRONT_PAGE
    (picture,) = re.findall(r"!\[.+\]\((.*)\)", README)
    assert 0 < (ROOT / picture).stat().st_size <= PICTURE
    guides = linked("README.md")
    assert "docs/configuration.md" in guides
    own = {guide for guide in GUIDES if "/" in guide}
    assert own <= guides.union(*map(linked, guides))  # each is found from there, or from the next one


def test_ci_runs_first_and_last_readme_blocks():
    assert FIRST.endswith("&& .venv/bin/knot-runner\n")
    # three workers for two cores: some tests wait
    assert TESTS.endswith("&& .venv/bin/python -m pytest -n 3 --dist worksteal\n")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "readme_command 1)" in ci and f"readme_command {len(BLOCKS)})" in ci


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """A working folder with the files that README's commands on your own data read."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(30):
            height, width = rng.integers(30, 60, 2)
            image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
            image.save(tmp_path / "pets" / name / f"{number}.{'png' if number % 2 else 'jpg'}")
    (tmp_path / "reviews").mkdir()
    rows = [f"word{number} word{number % 7},{'good' if number % 2 else 'bad'}" for number in range(80)]
    (tmp_path / "reviews" / "texts.csv").write_text("\n".join(["text,label", *rows, ""]))
    monkeypatch.chdir(tmp_path)


def run_short(line: str) -> list[str]:
    """Run a command of README with the settings for a smaller run; returns its arguments."""
    program, *arguments = shlex.split(line, comments=True)
    assert program == "knot-runner"
    small = next((SHORT[word] for word in arguments if word in SHORT), [])
    given = [word for word in arguments if not word.startswith("training.rounds=")]
    assert main([*given, *small, *(["hardware.num_workers=1"] if small else [])]) == 0, line
    return arguments


@pytest.mark.parametrize("line", [*OWN_DATA, *USES])
def test_commands_run(line, own_data, capsys):
    run_short(line)


@pytest.mark.parametrize("line", README_SWEEPS)
def test_commands_of_sweeps_compose(line, capsys):
    """``tests/sweep`` runs their launchers."""
    if "launcher=ray" in line and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    assert main(["check", "--quick", *shlex.split(line)[1:]]) == 0, capsys.readouterr()


def test_readme_comparison_prints_table_and_draws_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run, plot = COMPARISON
    run_short(run)
    table = capsys.readouterr().out
    assert all(re.search(rf"^{arm} +0\.\d+", table, re.M) for arm in ("fedavg", "fedprox_0.1", "fedprox_1"))
    assert main([*shlex.split(plot)[1:], *SMALL_IMAGES, "training.rounds=2", "seed=0,1"]) == 0
    assert (tmp_path / "outputs/figures/federated/fedprox.png").stat().st_size > 10_000


def test_figures_guide_commands_draw_their_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs, *figures = blocks("docs/figures.md")
    for line in runs.splitlines():
        given = [word for word in shlex.split(line)[1:] if not word.startswith(("training.rounds=", "seed="))]
        assert main([*given, *SMALL_IMAGES, "training.rounds=2", "seed=0", "hardware.num_workers=1"]) == 0, line
    for line in figures:
        assert main(shlex.split(line)[1:]) == 0, line
    pictures = re.findall(r"!\[.+\]\(pictures/(.*)\)", (ROOT / "docs/figures.md").read_text())
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(pictures) and len(pictures) == 12
    assert all((ROOT / "docs/pictures" / name).stat().st_size <= 80_000 for name in pictures)


def test_readme_python_example_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # pandas leaves out columns of a narrow terminal
    (example,) = blocks("README.md", "python")
    exec(compile(example, "README.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"outputs/femnist/fedavg/\w+ 0\.\d+", shown[0])
    assert any("fedprox" in line and "accuracy" in line for line in shown)


@pytest.mark.thorough
def test_sweeps_guide_commands_run_one_after_another(tmp_path):
    """Here without launchers of others, which tests/sweep runs: with these very overrides."""
    for line in SWEEPS:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "knot-runner"
        launched = [word for word in arguments if word.startswith("hydra")]
        assert not launched or any(own[: len(launched)] == launched for own in LAUNCHERS.values())
        own = [word for word in arguments if word not in launched]
        small = [] if arguments[0] == "compare" else SMALL_IMAGES
        quick = ["--quick"] if arguments[0] == "check" else []
        assert main([*own, *quick, *small, f"paths.output_dir={tmp_path}"]) == 0, line
    assert (tmp_path / "reports" / "chill/table1.html").exists() and (tmp_path / "claims" / "chill/table1.md").exists()


@pytest.mark.parametrize("line", BENCHMARKS)
def test_benchmarks_are_there_and_have_these_options(line, monkeypatch):
    """That they can be imported and take the options; running all of them takes a minute."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    bench = importlib.import_module("bench")
    program, script, *arguments = shlex.split(line)
    assert (program, script) == ("python", "scripts/bench.py")
    assert callable(importlib.import_module(bench.BENCHES[bench.parsed(arguments).bench]).main)


def test_bench_gpu_runs_without_a_gpu(capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    bench, bench_gpu = (importlib.import_module(name) for name in ("bench", "bench_gpu"))
    only = ["tf32", "graphs", "W2, loop", "64 x 4"]
    words = ["gpu", "--cpu", "--quick", "--rounds", "1", "--only", *only, "--out", str(tmp_path / "table.md")]
    bench_gpu.main(bench.parsed(words))
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(only) and not any("FAILED" in found for _, found in rows)
    assert all(row[1].startswith("not here: a CPU has no ") for row in rows[:2])
    assert "| W2, loop, float32: s a round |" in (tmp_path / "table.md").read_text()


PRESETS = (ROOT / "docs" / "claims.md").read_text().partition("\n## Presets\n")[2]
ROWS = re.findall(r"^\| `([\w/]+)` \| (.*) \|$", PRESETS, flags=re.M)
#: Commands of the guide's table of pieces.
PIECES = re.findall(r"\| `(method=[^`]*)` \|$", (ROOT / "docs" / "configuration.md").read_text(), re.M)
#: Presets with published values: name -> overrides of their command.
BESIDES = {name: cells.split("|")[1].strip(" `") for name, cells in ROWS if cells.count("|") > 1}
#: Of those whose runs are recorded with settings of their own: one job of the grid.
ONE_JOB = {
    "chill/table1": "method.temperature=1 method.lr_control=false",
    "chill/mnist_notebook": "method.temperature=1",
    "fedwad/table1": "method=clustered_fedavg partition=pairs partition.num_clients=20 method.clustering.graph=none",
    "knot/table3": "method=entropy_a",
}


def test_experiment_guide_lists_every_preset_once_and_papers_first():
    assert sorted(name for name, _ in ROWS) == choices("experiment")
    presets = {name: yaml.safe_load(path.read_text()) for name, path in yaml_files("experiment").items()}
    assert set(BESIDES) == {name for name, preset in presets.items() if "paper" in (preset.get("report") or {})}


@pytest.mark.parametrize("name", ONE_JOB)
def test_experiment_guide_command_words_compose_to_one_job(name):
    words = [word for word in BESIDES[name].split() if not word.startswith("seed=")]
    assert len(compose_all([f"experiment={name}", *words, *ONE_JOB[name].split(), "seed=0"])[0]) == 1


@pytest.mark.parametrize("command", PIECES)
def test_conf_guide_pieces_compose_to_one_job(command):
    assert len(PIECES) == 5 and len(compose_all(["task=femnist", *command.split()])[0]) == 1


STOPS = (ROOT / "docs" / "configuration.md").read_text().partition("## What it says when it stops")[2].partition("\n## ")[0]
#: Commands, and what the guide says that they print.
MESSAGES = re.findall(r"^\| `([^`]*)` \| `([^`]*)` \| .+ \|$", STOPS, flags=re.M)


@pytest.mark.parametrize("command, says", MESSAGES, ids=[command for command, _ in MESSAGES])
def test_troubleshooting_commands_print_guide_messages(command, says, tmp_path, monkeypatch, capsys):
    assert len(MESSAGES) == 9
    if "hardware=cuda" in command and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.delenv("KNOT_DATA", raising=False)
    data = tmp_path / "data"
    data.mkdir()
    words = [word.replace("DIR", str(data)) for word in command.split()]
    assert main([*words, f"paths.output_dir={tmp_path / 'out'}"]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("knot-runner: "))
    expected = re.escape(says.replace("DIR/", f"{data}/")).replace(re.escape("..."), ".*")
    assert re.fullmatch(f"knot-runner: {expected}", line), line


@pytest.mark.thorough
def test_package_guide_python_examples_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs, distance = blocks("docs/architecture.md", "python")
    exec(compile(runs, "docs/architecture.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("outputs/femnist/fedavg_chill/") and shown[0].endswith(" 2")
    assert any("metrics.accuracy.ALL" in line for line in shown)
    exec(compile(distance, "docs/architecture.md", "exec"), {})
    value, server_only, first, last = map(float, capsys.readouterr().out.split())
    assert 0.9 < server_only / value < 1 and value <= last < first


@pytest.mark.thorough
def test_guide_has_the_table_of_compositions(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    script = importlib.import_module("compositions")
    assert script.markdown(script.table()) in script.GUIDE.read_text(), "run python scripts/compositions.py table"


def test_tour_outputs_come_from_one_ordered_run():
    text = (ROOT / "scripts" / "tour.ipynb").read_text()
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert kinds == {"stream", "execute_result"}  # and no error
    assert not any(word in text for word in ("/tmp/", "/home/", "/root/"))
    links = re.findall(r"\]\(([^)#]*)", "".join("".join(cell["source"]) for cell in cells if cell not in code))
    assert links and all((ROOT / "scripts" / link).is_file() for link in links)
