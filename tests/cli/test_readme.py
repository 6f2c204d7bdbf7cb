"""What README and the guides say is true; ``test_guides.py`` runs their commands."""

import importlib
import json
import re
import shlex

import pytest
import torch
import yaml
from PIL import Image

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import choices, yaml_files
from tests.cli.test_guides import GUIDES, ROOT, TEXTS, blocks
from tests.of_papers import is_here, of_papers

README = TEXTS["README.md"]
BLOCKS = blocks("README.md")


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide):
    for link in re.findall(r"\]\(([^)]*)\)", TEXTS[guide]):
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
    found = re.findall(r"\]\(([^)#:]*\.md)", TEXTS[guide])
    return {str(((ROOT / guide).parent / link).resolve().relative_to(ROOT)) for link in found}


def test_readme_is_a_front_page():
    assert len(README.splitlines()) <= 160
    (picture,) = re.findall(r"!\[.+\]\((.*)\)", README)
    assert 0 < (ROOT / picture).stat().st_size <= 150_000
    guides = linked("README.md")
    assert "docs/configuration.md" in guides
    own = {guide for guide in GUIDES if "/" in guide}
    assert own <= guides.union(*map(linked, guides))  # each is found from there, or from the next one


def test_ci_runs_first_and_last_readme_blocks():
    assert BLOCKS[0].endswith("&& .venv/bin/knot-runner\n")
    assert BLOCKS[-1].endswith("&& .venv/bin/python -m pytest -n 3 --dist worksteal\n")
    ci = (ROOT / ".ci" / "run").read_text()
    assert "readme_command 1)" in ci and f"readme_command {len(BLOCKS)})" in ci


def test_figures_guide_shows_every_picture_that_its_commands_draw():
    pictures = re.findall(r"!\[.+\]\(pictures/(.*)\)", TEXTS["docs/figures.md"])
    assert sorted(re.findall(r"--out=(\S+\.png)", TEXTS["docs/figures.md"])) == sorted(pictures) != []
    for name in pictures:
        small = ROOT / "docs/pictures" / name
        wide = small.with_stem(f"{small.stem}_1600")
        assert small.stat().st_size <= 80_000 and wide.stat().st_size <= 150_000
        assert Image.open(wide).width == 2 * Image.open(small).width == 1600
        assert small.with_suffix(".pdf").read_bytes()[:4] == b"%PDF"


@pytest.mark.parametrize("line", blocks("scripts/README.md")[-1].splitlines())
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


PRESETS = TEXTS["docs/claims.md"].partition("\n## Presets\n")[2]
#: Presets in the order in which the guide names them.
NAMES = [name for name in re.findall(r"`(\w+/\w+)`", PRESETS) if is_here(name)]
TABLES = PRESETS.partition("\n### Published tables\n")[2].partition("\n### ")[0]
ROWS = [row for row in re.findall(r"^\| `([\w/]+)` \| (.*?) ?\|.*\|$", TABLES, flags=re.M) if is_here(row[0])]
#: Of presets with printed numbers: name -> the overrides of their command.
BESIDES = {name: overrides.strip("`") for name, overrides in ROWS}
#: Of those whose runs are recorded with settings of their own: one job of the grid.
ONE_JOB = {
    "chill/table1": "method.temperature=1 method.lr_control=false",
    "chill/mnist_notebook": "method.temperature=1",
    "fedwad/table1": "method=clustered_fedavg partition=pairs partition.num_clients=20 method.clustering.graph=none",
    "knot/table3": "method=entropy_a",
}


def test_experiment_guide_lists_every_preset_once_and_papers_first():
    assert sorted(NAMES) == choices("experiment")
    presets = {name: yaml.safe_load(path.read_text()) for name, path in yaml_files("experiment").items()}
    assert set(BESIDES) == {name for name, preset in presets.items() if "paper" in (preset.get("report") or {})}


@pytest.mark.parametrize("name", of_papers(list(ONE_JOB)))
def test_experiment_guide_command_words_compose_to_one_job(name):
    words = [word for word in BESIDES[name].split() if not word.startswith("seed=")]
    assert len(compose_all([f"experiment={name}", *words, *ONE_JOB[name].split(), "seed=0"])[0]) == 1


STOPS = TEXTS["docs/configuration.md"].partition("## Error messages")[2].partition("\n## ")[0]
#: Commands, and what the guide says that they print.
MESSAGES = re.findall(r"^- `([^`]*)`: `([^`]*)`$", STOPS, flags=re.M)


@pytest.mark.parametrize("command, says", MESSAGES, ids=[command for command, _ in MESSAGES])
def test_troubleshooting_commands_print_guide_messages(command, says, tmp_path, monkeypatch, capsys):
    assert len(MESSAGES) == 6
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
