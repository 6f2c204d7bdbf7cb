"""Presets in folders: ours by paper, and the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

import knot_runner as kr
from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.util.config_yaml import choices
from knot_runner.util.errors import nearest
from tests.tiny import TINY_IMAGES

OWN = """\
# @package _global_
# knot-runner experiment={name}
# A small comparison
defaults:
  - /experiment/federated/fedprox
  - _self_
sweep:
  seed: "0"
report:
  claims:
    - {{text: FedProx is more accurate, measure: accuracy, expect: higher, source: ours,
        of: {{arm: fedprox_1}}, against: {{arm: fedavg}}}}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    for name in ("mine/tiny", "mine/deep/tiny"):
        path = tmp_path / "conf" / "experiment" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(OWN.format(name=name))
    return tmp_path / "conf"


def test_nearest_corrects_missing_folder_or_slash() -> None:
    for name in choices("experiment"):
        folder, _, rest = name.partition("/")
        typed = rest if folder == "federated" else f"{folder}_{rest}"
        assert nearest(typed, choices("experiment")) == f" (did you mean '{name}'?)"


def test_experiment_glob_selects_presets_of_folder(own: Path) -> None:
    flag = f"--config-dir={own}"
    _, commands = compose_all([flag, "experiment=glob(mine/*)"])
    assert [command.preset for command in commands] == ["mine/deep/tiny", "mine/tiny"]


def test_own_preset_writes_below_its_folder(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, out = "mine/deep/tiny", own.parent / "out"
    small = [word for word in TINY_IMAGES[1:] if not word.startswith("partition.")]
    words = [f"--config-dir={own}", f"paths.output_dir={out}", "arm=fedavg,fedprox_1", *small]
    for job in compose_all([f"experiment={name}", *words])[0]:
        kr.run(job)
    assert [main([verb, name, *words]) for verb in ("report", "claims", "plot")] == [0, 0, 0]
    for path in (f"figures/{name}.png", f"reports/{name}.html", f"claims/{name}.md"):
        assert (out / path).is_file()
