"""A preset's report is checked before its runs."""

import pytest
import yaml

from knot_runner.report.check import check_report
from knot_runner.util.config_yaml import yaml_files
from tests.golden.messages import refuses
from tests.of_papers import WORDS, of_papers

CLAIM = {"text": "a", "measure": "accuracy", "of": {"method.name": "fedavg"}, "against": {"method.name": "fedprox"},
         "source": "ours", "expect": "higher"}  # fmt: skip


def test_report_of_every_preset_passes():
    for path in yaml_files("experiment").values():
        check_report(yaml.safe_load(path.read_text()).get("report") or {})


@pytest.mark.parametrize("spec", of_papers([
    {"kind": "methodz"}, pytest.param({"kind": ["grid"]}, marks=pytest.mark.paper(*WORDS)),
    {"metrics": ["acuracy"]}, {"metrics": "f1"}, {"paper": "knot_table9"},
    {"paper": "chill/table1"}, {"figures": ["plto"]}, {"seeds": 1}, {"claims": [CLAIM | {"measure": "acc"}]},
    {"claims": [CLAIM | {"expects": "higher"}]}, {"figuress": []}, {"x": 1}, {"metrics": [[1]]}, {"figures": [[1]]},
    {"paper": [1]}, {"notes": "a"}, {"reference": [1]}, {"cases": [1]}, {"target": 2}, {"unlike": " "},
]))  # fmt: skip
def test_misspelled_report_is_refused(spec):
    with refuses():
        check_report(spec)
