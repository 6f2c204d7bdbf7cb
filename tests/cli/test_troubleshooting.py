"""The messages that ``conf/README.md`` explains are those that the commands beside them print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from knot_runner.cli.main import main

GUIDE = (Path(__file__).resolve().parents[2] / "conf" / "README.md").read_text()
SECTION = GUIDE.partition("## What it says when it stops")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `([^`]*)` \| `([^`]*)` \| .+ \|$", SECTION, flags=re.M)


def test_troubleshooting_guide_explains_the_usual_messages() -> None:
    assert len(ROWS) == 9


@pytest.mark.parametrize("command, says", ROWS, ids=[command for command, _ in ROWS])
def test_troubleshooting_commands_print_guide_messages(command, says, tmp_path, monkeypatch, capsys):
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
