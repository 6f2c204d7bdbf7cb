"""The claims of presets: each can be judged, and its printed effect is that of the paper's table."""

import re

import numpy as np
import pytest
import yaml

from knot_runner.cli.parsers import run_verb
from knot_runner.cli.show import references
from knot_runner.composing.commands import compose_all
from knot_runner.report.check import check_report
from knot_runner.report.claims.spec import claim_settings
from knot_runner.report.claims.verdicts import judge
from knot_runner.util.config_yaml import yaml_files
from tests.golden.messages import refuses
from tests.of_papers import WORDS, of_papers
from tests.oracles.test_published import EXPERIMENTS, PUBLISHED, assert_holds

CLAIMED = {name: claims for name, preset in EXPERIMENTS.items() if (claims := claim_settings(preset["report"]).claims)}
#: A small part of a grid that has all that its claims compare.
PARTS = {
    **{f"fedwad/table{i}": ["partition.num_clients=20"] for i in range(1, 6)},
    "fedwad/runtime": ["task.dimension=2", "task.samples=30,300"],
    "knot/grid": ["training.distill.batch_size=16", "method.loss.epsilon=1.0e-4,16"],
}
#: One of each folder; composing the grids of the others takes a second each.
QUICK = ("chill/table1", "federated/fedmd_femnist", "kd/temperature", "knot/table3", "soup/cossim")
#: All other presets.
OTHERS = [name for name in sorted(EXPERIMENTS) if name not in QUICK]


@pytest.mark.parametrize("names", [
    *(pytest.param([name], id=name) for name in QUICK if name in EXPERIMENTS),
    pytest.param(OTHERS, marks=pytest.mark.thorough, id="others"),
])  # fmt: skip
def test_presets_compose_runs_for_all_their_claims(names, tmp_path):
    """And have the values that notes in ``conf/`` name."""
    for name in names:
        jobs, _ = compose_all([f"experiment={name}", f"paths.output_dir={tmp_path}", "seed=0", *PARTS.get(name, [])])
        check_report(jobs[0].settings.report)
        assert_holds(jobs[0].config, PUBLISHED["notes"].get(name, {}))
        if name in CLAIMED:
            verdicts = judge(references(jobs), jobs[0].settings.report, "make them")
            assert [one.verdict for one in verdicts] == ["no runs"] * len(CLAIMED[name]), name
            assert all(one.runs for one in verdicts), [one.text for one in verdicts if not one.runs]


def test_planned_seeds_come_only_from_preset():
    """What a preset runs reaches its first look, but for the two that say that they give estimates."""
    for name in CLAIMED:
        report, seeds = EXPERIMENTS[name]["report"], str(EXPERIMENTS[name]["sweep"]["seed"]).split(",")
        assert report["seeds"] == {"knot/table4": 4, "fedwad/knn": 3}.get(name, len(seeds))
    for override in ("report.seeds=2", "+report.seeds=2", "++report.seeds=2", "~report.seeds"):
        with refuses():
            run_verb("claims", ["federated/fedprox", override])


LOWER = re.compile(r"\b(lower|lowers|fewer|less accurate|loses|sooner|closer|below)\b")
#: Numbers that a text has in words, and a cut-off that all of its runs share
IN_WORDS = {"twice": 2, "six times": 6, "within a point": 0.01, "clipping alone": 0, "indicator": 0.4, "Writers": 0.4}


@pytest.mark.parametrize("name", CLAIMED)
def test_claims_compare_what_their_text_says(name):
    """The direction, every number of the fields, and which side is named first. Equal words name equal runs."""
    assert len({claim.text for claim in CLAIMED[name]}) == len(CLAIMED[name])
    sides = {}
    for claim in CLAIMED[name]:
        said = re.sub(r"^[^:\d]*: ", "", claim.text).rpartition(" than ")[0]
        assert not said or sides.setdefault(said, claim.of) == claim.of, claim.text
    for claim in CLAIMED[name]:
        assert claim.source and not re.search(r"[{}<>]", claim.text)
        percent = re.search(r"reaches (\d+)%", claim.text)
        if percent:
            assert EXPERIMENTS[name]["report"]["target"] == float(percent[1]) / 100, claim.text
        if claim.expect in ("higher", "lower"):
            assert claim.expect == ("lower" if LOWER.search(claim.text) else "higher"), claim.text
        against = claim.against if isinstance(claim.against, dict) else {}
        assert claim.of != against and not claim.of.get("method.lr_control"), claim.text
        assert (" at rate lr/" in claim.text) == against.get("method.lr_control", False), claim.text
        expect = claim.expect if isinstance(claim.expect, dict) else {}
        values = [*claim.of.values(), *against.values(), *claim.where.values(), *expect.values(), abs(claim.by)]
        named = {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", claim.text.replace("/", " "))}
        named |= {number for words, number in IN_WORDS.items() if words in claim.text}
        named |= set() if claim.by else {0.0}
        for value in values:
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert value in named or 100 * value in named, claim.text
        first = [places[0] for places in _places(claim.text, dict(claim.of.items() - against.items()))]
        last = [places[1] for places in _places(claim.text, dict(against.items() - claim.of.items()))]
        if first and last and "train shorter reach" not in claim.text:
            assert min(first) < max(last), claim.text


def _places(text, side):
    """Of each arm, method or temperature of ``side`` that ``text`` names: its first and its last place in it."""
    spelled = re.sub(r"[^a-z0-9.=]", "", text.lower())
    words = [f"t={value}" if key == "method.temperature" else str(value) for key, value in side.items()]
    words = [re.sub(r"[^a-z0-9.=]", "", word) for word in words]
    return [(spelled.find(word), spelled.rfind(word)) for word in words if word in spelled]


@pytest.mark.parametrize("name", CLAIMED)
def test_claims_expect_what_the_paper_found(name):
    """The sign of the paper's own effect: of ratios (above 1: of is quicker) its logarithm, less what ``by`` asks."""
    for claim in CLAIMED[name]:
        printed = re.search(r"([\d.]+) against ([\d.]+)", claim.source)
        if printed:
            effect = float(printed[1]) - float(printed[2])
            assert claim.paper in (None, pytest.approx(effect)), claim.text
            assert claim.expect == ("higher" if effect > 0 else "lower"), claim.text
        if claim.paper is None:
            continue
        if isinstance(claim.expect, dict):
            assert claim.paper >= claim.expect["ratio"], claim.text
            continue
        effect = np.log(claim.paper) if claim.logs else claim.paper - claim.by
        rising = claim.expect in ("higher", "rises")
        if claim.logs and not claim.trend:
            rising = not rising  # rounds of against over rounds of of: fewer rounds, a larger ratio
        assert effect > 0 if rising else effect < 0, claim.text


CLAIM = {"text": "a", "measure": "accuracy", "of": {"method.name": "fedavg"}, "against": {"method.name": "fedprox"},
         "source": "ours", "expect": "higher"}  # fmt: skip


def test_report_of_every_preset_passes():
    for path in yaml_files("experiment").values():
        check_report(yaml.safe_load(path.read_text()).get("report") or {})


@pytest.mark.parametrize("spec", of_papers([
    {"kind": "methodz"}, pytest.param({"kind": ["grid"]}, marks=pytest.mark.paper(*WORDS)), {"metrics": ["acuracy"]},
    {"metrics": "f1"}, {"paper": "knot_table9"}, {"paper": "chill/table1"}, {"figures": ["plto"]}, {"seeds": 1},
    {"claims": [CLAIM | {"measure": "acc"}]}, {"claims": [CLAIM | {"expects": "higher"}]}, {"figuress": []}, {"x": 1},
    {"metrics": [[1]]}, {"figures": [[1]]},
    {"figures": [{"z": "round"}]}, {"figures": [{"mark": "pie"}]},
    {"paper": [1]}, {"notes": "a"}, {"reference": [1]}, {"cases": [1]},
    pytest.param({"target": 2}, marks=pytest.mark.paper("chill")), {"unlike": " "},
]))  # fmt: skip
def test_misspelled_report_is_refused(spec):
    with refuses():
        check_report(spec)
