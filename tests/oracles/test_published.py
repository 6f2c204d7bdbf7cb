"""Values that papers state, as conf gives them after composing: coordinates of labels, protocols, grids. Expectations
are in published.yaml: copied from the papers (for protocols that only public code states: from that code), not from
conf."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from knot_runner.composing.commands import compose_all
from knot_runner.report.run_folders import lookup
from knot_runner.util.config_yaml import config_folder, yaml_files
from tests.of_papers import is_here, of_papers
from tests.unit.report.made_runs import LABELS

PUBLISHED = yaml.load(Path(__file__).with_name("published.yaml").read_text(), yaml.CSafeLoader)
EXPERIMENTS = {name: yaml.load(path.read_text(), yaml.CSafeLoader) for name, path in yaml_files("experiment").items()}


@cache
def config(*overrides):
    job = compose_all([*overrides, "seed=0"], first=True)[0][0]
    return job.config


#: KNOT section 4.1: the roles of the data sets (locals, global, transfer); names and coordinates stand in LABELS
ROLES = {
    "sa": (["Cell", "Cloths", "Toys"], ["Food"], ["Grocery"]),
    "erc": (["MELD", "IEMOCAP", "DyDa0", "DyDa1"], ["DyDa2"], ["DyDa3"]),
    "nli": (["Fic", "Gov", "Slate", "Tele", "Trv"], ["SNLI"], ["ANLI"]),
}


@pytest.mark.parametrize("task", ROLES)
def test_label_tasks_follow_the_paper(task):
    chosen, roles = config(f"task={task}")["task"], ROLES[task]
    assert (chosen["labels"]["names"], chosen["labels"]["coordinates"]) == LABELS[task]
    assert chosen["labels"]["support"] == "semantic"
    for role, expected in zip(("local", "global", "transfer"), roles, strict=True):
        assert [name for name, one in chosen["datasets"].items() if one["role"] == role] == expected
    assert chosen["max_length"] == 200 and chosen["context"] == (7 if task == "erc" else 0)
    assert chosen["split"] == {"valid": 0.102, "test": 0.198, "seed": 2021}
    assert chosen["score"] == ("accuracy" if task == "nli" else "f1")


def test_data_file_labels_match_papers():
    stars = config("task=sa")["task"]["datasets"]["Cell"]["labels"]
    assert [stars[str(star)] for star in range(1, 6)] == LABELS["sa"][0]
    datasets = config("task=erc")["task"]["datasets"]
    numbers = {"0": "no_emotion", "1": "anger", "4": "happiness", "5": "sadness", "6": "surprise"}
    assert {key: datasets["DyDa0"]["labels"][key] for key in numbers} == numbers
    assert [datasets[f"DyDa{i}"]["chunk"] for i in range(4)] == [[i, 4] for i in range(4)]
    codes = config("task=nli")["task"]["datasets"]["ANLI"]["labels"]
    assert [codes[key] for key in ("0", "1", "2", "e", "n", "c")] == LABELS["nli"][0] * 2


@pytest.mark.parametrize("words", of_papers([*PUBLISHED["protocols"]]))
def test_protocols(words):
    assert_holds(config(*words.split()), PUBLISHED["protocols"][words])


def assert_holds(made, values):
    assert {key: lookup(made, key) for key in values} == values


@pytest.mark.parametrize("name", sorted(yaml_files("task").keys() - {"folders", "gaussians", "image_sets"}))
def test_data_sets_are_normalized_as_published(name):
    task = config(f"task={name}")["task"]
    assert [task.get("mean"), task.get("std")] == PUBLISHED["channels"].get(name, [None, None])


SOURCED = re.compile(
    r"#.*(paper|published|(?:authors'|public|earlier|older|later|SA|ERC|FedWaD's) code|notebook|\bcode:)", re.IGNORECASE
)


def test_values_with_a_source_match_it():
    """Every line whose comment names one: its value, and what the comment says of the source's."""
    sources = PUBLISHED["sources"]
    actual = {}
    headed = set()
    for path in sorted(config_folder().rglob("*.yaml")):
        name = path.relative_to(config_folder()).with_suffix("").as_posix()
        for line in filter(SOURCED.search, path.read_text().splitlines()):
            text, _, comment = line.partition("#")
            if not text.strip():
                headed.add(name)
                continue
            [(key, value)] = yaml.safe_load(text).items()
            assert sources.get(name, {}).get(key, ["", ""])[1] in comment, f"{name}: {line}"
            actual.setdefault(name, {})[key] = value
    expected = {name: rows for name, rows in sources.items() if is_here(name.removeprefix("experiment/"))}
    assert actual == {name: {key: value for key, (value, _) in rows.items()} for name, rows in expected.items()}
    assert headed == {name for name in PUBLISHED["headed"] if is_here(name.removeprefix("experiment/"))}


@pytest.mark.parametrize("name", of_papers([*PUBLISHED["headed"]]))
def test_values_below_a_source_match_it(name):
    assert_holds(yaml.safe_load((config_folder() / f"{name}.yaml").read_text()), PUBLISHED["headed"][name])


@pytest.mark.parametrize("name", of_papers([*{**EXPERIMENTS, **PUBLISHED["grids"]}]))
def test_presets_sweep_the_grid_of_the_paper(name):
    sweep = dict(EXPERIMENTS[name]["sweep"])
    arms = sweep.pop("arms", {})
    assert {key: str(value) for key, value in sweep.items()} == {"seed": "0,1,2", **PUBLISHED["grids"][name]}
    listed = PUBLISHED["arms"].get(name, {})
    assert listed.keys() <= arms.keys()
    for arm, own in arms.items():
        assert {key: value for key, value in own.items() if not isinstance(value, str)} == listed.get(arm, {}), arm
