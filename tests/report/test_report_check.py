"""A preset's report is checked before its runs: what is misspelt in it must not wait for the end of a sweep."""

from pathlib import Path

import pytest
import yaml

from knot_runner.cli.main import main
from knot_runner.report.check import check_report
from knot_runner.util.errors import UserError

PRESETS = sorted((Path(__file__).parents[2] / "conf" / "experiment").glob("*.yaml"))
CLAIM = {"text": "a", "measure": "accuracy", "of": {"method.name": "fedavg"}, "against": {"method.name": "fedprox"}}
CLAIM |= {"source": "ours", "expect": "higher"}


def test_every_preset_passes():
    for path in PRESETS:
        check_report(yaml.safe_load(path.read_text()).get("report") or {})


@pytest.mark.parametrize(("spec", "line"), [
    ({"kind": "methodz"}, "report.kind: there is no table or figure 'methodz' (did you mean 'methods'?)"),
    ({"kind": ["grid"]}, "report.kind: there is no table or figure ['grid']"),
    ({"metrics": ["acuracy"]}, "report.metrics: there is no metric 'acuracy' (did you mean 'accuracy'?)"),
    ({"metrics": "f1"}, "report.metrics: 'f1' is not a list; [f1] would be one"),
    ({"paper": "knot_table9"}, "knot_table9"),
    ({"paper": "chill/table1"}, "chill/table1 cannot stand beside a table of kind methods"),
    ({"figures": ["curvs"]}, "report.figures: there is no figure 'curvs' (did you mean 'curves'?)"),
    ({"seeds": 1}, "report.seeds"),
    ({"claims": [CLAIM | {"measure": "acc"}]}, "claim 'a': there is no measure 'acc'"),
    ({"claims": [CLAIM | {"expects": "higher"}]}, "report.claims[0].expects"),
])  # fmt: skip
def test_what_is_misspelt_is_one_line(spec, line):
    with pytest.raises(UserError) as problem:
        check_report(spec)
    assert line in str(problem.value) and "\n" not in str(problem.value)


@pytest.mark.parametrize("verb", [[], ["check", "--quick"]])
def test_nothing_runs_where_the_report_could_not_be_made(verb, tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    own = "# @package _global_\nsweep:\n  seed: 0,1\nreport:\n  kind: gridd\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(own)
    out = tmp_path / "out"
    assert main([*verb, f"--config-dir={tmp_path}", "experiment=mine", "task=femnist", f"paths.out={out}"]) == 2
    shown = capsys.readouterr()
    assert "report.kind: there is no table or figure 'gridd' (did you mean 'grid'?)" in shown.err
    assert "Traceback" not in shown.err and not list(out.rglob("config.yaml"))
