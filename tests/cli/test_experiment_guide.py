"""``conf/experiment/README.md`` has every preset once, and commands that compose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import choices, yaml_files

FOLDER = Path(__file__).resolve().parents[2] / "conf" / "experiment"
ROWS = re.findall(r"^\| `([\w/]+)` \| (.*) \|$", (FOLDER / "README.md").read_text(), flags=re.M)
#: Commands of the guide's table of pieces.
PIECES = re.findall(r"\| `(method=[^`]*)` \|$", (FOLDER.parent / "README.md").read_text(), re.M)
#: Of presets with printed numbers: name -> what their command has besides.
BESIDES = {name: cells.split("|")[2].strip(" `") for name, cells in ROWS if cells.count("|") > 3}
#: Of those whose runs are recorded with settings of their own: one job of the grid.
ONE_JOB = {
    "chill/table1": "method.temperature=1 method.lr_control=false",
    "chill/mnist_notebook": "method.temperature=1",
    "fedwad/table1": "method=clustered_fedavg partition=pairs partition.num_clients=20 method.clustering.graph=none",
    "knot/table3": "method=entropy_a",
}


def test_experiment_guide_lists_every_preset_once() -> None:
    assert sorted(name for name, _ in ROWS) == choices("experiment")


def test_experiment_guide_first_table_lists_paper_presets() -> None:
    reports = {
        name: yaml.safe_load(path.read_text()).get("report") or {} for name, path in yaml_files("experiment").items()
    }
    assert set(BESIDES) == {name for name, report in reports.items() if "paper" in report}


@pytest.mark.parametrize("name", ONE_JOB)
def test_experiment_guide_command_words_compose_to_one_job(name: str) -> None:
    words = [word for word in BESIDES[name].split() if not word.startswith("seed=")]
    jobs, _ = compose_all([f"experiment={name}", *words, *ONE_JOB[name].split(), "seed=0"])
    assert len(jobs) == 1


@pytest.mark.parametrize("command", PIECES)
def test_conf_guide_pieces_compose_to_one_job(command: str) -> None:
    assert len(PIECES) == 5 and len(compose_all(["task=femnist", *command.split()])[0]) == 1
