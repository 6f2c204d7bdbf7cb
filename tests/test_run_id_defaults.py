"""Settings at their defaults, grids and reports leave a run its name."""

from __future__ import annotations

from knot_runner.composing.commands import compose_jobs
from knot_runner.config.settings import run_id


def test_shares_by_default_are_the_shares_themselves() -> None:
    words = ["task=mnist", "method=entropy_a"]
    same = ["partition.server=0.2", "partition.transfer=0.2", "partition.valid=0.1"]
    ids = [compose_jobs([*words, *more], None)[0].run_id for more in ([], same, ["partition.server=0.3"])]
    assert ids[0] == ids[1] != ids[2]


def test_the_revision_counts_where_the_hub_is_read() -> None:
    hub = ["task=sa", "method=entropy_a", "task.source=hub"]
    ids = {compose_jobs([*hub, *more], None)[0].run_id for more in ([], ["task.datasets.Food.hub.revision=x"])}
    assert len(ids) == 2


def test_a_presets_grid_and_report_are_no_part_of_a_run() -> None:
    (job,) = compose_jobs(["task=femnist"], None)
    assert run_id({**job.config, "sweep": {"seed": "0,1"}, "report": {"claims": {}}}) == job.run_id


def test_a_held_out_share_by_default_is_the_share_itself_and_none_leaves_a_run_its_name() -> None:
    names = {
        words: compose_jobs(["task=femnist", *words.split()], None)[0].run_id
        for words in ("method=feddf", "method=feddf partition.transfer=0.2", "method=feddf partition.transfer=0.3")
        + ("method=fedavg", "method=fedavg partition.transfer=0.2")
    }
    assert names["method=feddf"] == names["method=feddf partition.transfer=0.2"]
    assert len(set(names.values())) == 4
    (plain,) = compose_jobs(["task=femnist", "method=fedavg"], None)
    before = {**plain.config, "method": {k: v for k, v in plain.config["method"].items() if k != "distil"}}
    assert run_id(before) == plain.run_id
