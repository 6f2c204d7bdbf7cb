"""Presets for tests of ``knot-runner reproduce``."""

from __future__ import annotations

from pathlib import Path

#: Two temperatures and two seeds of digits that need no file, and one claim.
PRESET = """\
# @package _global_
# knot-runner experiment={name}
# a preset of a test
defaults:
  - override /task: femnist
  - override /method: fedavg_chill
  - override /hardware: cpu
task: {{limit: 300, shape: [1, 8, 8], source: {source}}}
partition: {{count: 6, alpha: 5.0}}
model: {{hidden: [16]}}
hardware: {{workers: 1}}
training: {{rounds: {rounds}, epochs: 1, participants: 3, batch: 8, lr: 0.05}}
sweep:
  method.temperature: 1,0.5
  seed: 0,1
report:
  kind: temperatures
  metrics: [accuracy, loss]
  seeds: 2
  claims:
    - text: colder is better
      source: a test
      measure: accuracy
      of: {{method.temperature: 0.5}}
      against: {{method.temperature: 1}}
      expect: higher
"""


def presets_in(root: Path) -> Path:
    """``root`` with a ``--config-dir`` of three presets and their list: ``quick`` and ``slow`` have data, ``away`` has
    none."""
    presets = root / "conf" / "experiment"
    presets.mkdir(parents=True)
    for name, source, rounds in (("quick", "embedded", 1), ("slow", "embedded", 2), ("away", "local", 1)):
        (presets / f"{name}.yaml").write_text(PRESET.format(name=name, source=source, rounds=rounds))
    (root / "conf" / "reproduce.yaml").write_text(
        "presets:\n- {preset: slow, runs: 4, minutes: 50}\n- {preset: away, runs: 4, minutes: 1}\n"
        "- {preset: quick, runs: 4, minutes: 2, words: [training.lr=0.1]}\n"
    )
    return root
