"""The claims of presets: each can be judged, and its printed effect is that of the paper's table."""

import re

import numpy as np
import pytest
import yaml

from knot_runner.cli.parsers import run_verb
from knot_runner.cli.show import references
from knot_runner.composing.commands import compose_all
from knot_runner.report.check import check_report
from knot_runner.report.claims.spec import read_claims
from knot_runner.report.claims.verdicts import judge
from knot_runner.util.config_yaml import yaml_files
from tests.golden.messages import refuses

PRESETS = {name: yaml.safe_load(path.read_text()) for name, path in yaml_files("experiment").items()}
CLAIMED = {name: read_claims(preset["report"]) for name, preset in PRESETS.items() if preset["report"].get("claims")}
#: Alike but for the data set or the partition of another.
TWINS = {"knot/table2", "knot/table4", "fedwad/table3", "fedwad/table4", "fedwad/table5"}
#: A small part of a grid that has all that its claims compare.
PARTS = {
    **{f"fedwad/table{i}": ["partition.num_clients=20"] for i in range(1, 6)},
    "fedwad/runtime": ["task.dimension=2", "task.samples=30,300"],
}
#: One of each family; composing the grids of the others takes a second each.
QUICK = {"chill/table1", "federated/fedmd_femnist", "kd/temperature", "knot/table3", "soup/cossim"}


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.thorough) for one in sorted(PRESETS)]
)
def test_preset_composes_runs_for_all_its_claims(name, tmp_path):
    jobs, _ = compose_all([f"experiment={name}", f"paths.output_dir={tmp_path}", "seed=0", *PARTS.get(name, [])])
    assert jobs
    check_report(jobs[0].settings.report)
    if name in CLAIMED and name not in TWINS:
        found = judge(references(jobs), jobs[0].settings.report, "make them")
        assert [one.verdict for one in found] == ["no runs"] * len(CLAIMED[name])
        assert all(one.runs for one in found), [one.text for one in found if not one.runs]


def test_planned_seeds_come_only_from_preset():
    """What a preset runs reaches its first look, but for the two that say that they give estimates."""
    for name in CLAIMED:
        report, seeds = PRESETS[name]["report"], str(PRESETS[name]["sweep"]["seed"]).split(",")
        assert report["seeds"] == len(seeds) or (report["seeds"] > len(seeds) and name in ("knot/table4", "fedwad/knn"))
    for override in ("report.seeds=2", "+report.seeds=2", "++report.seeds=2", "~report.seeds"):
        with refuses():
            run_verb("claims", ["federated/fedprox", override])


def test_claims_have_unique_texts_with_source():
    for own in CLAIMED.values():
        assert len({claim.text for claim in own}) == len(own)
        assert all(claim.source and not re.search(r"[{}<>]", claim.text) for claim in own)


@pytest.mark.parametrize("name", CLAIMED)
def test_claims_expect_what_the_paper_found(name):
    """The sign of the paper's own effect: of ratios (above 1: of is quicker) its logarithm, less what ``by`` asks."""
    for claim in CLAIMED[name]:
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
