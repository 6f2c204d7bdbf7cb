"""``scripts/tour.ipynb``: a valid notebook, whose code runs and ends with the frames that it shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "scripts" / "tour.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
#: What the test asks of the names that the notebook leaves.
SHOWN = """
import json
print()
print(json.dumps({
    "rounds": len(found.rounds),
    "runs": len(finished),
    "accuracy": list(accuracy.shape),
    "methods": sorted(set(accuracy["method"])),
    "table": list(table["method"]),
    "verdicts": list(verdicts["verdict"]),
}))
"""


def test_its_outputs_are_those_of_one_run_from_top_to_bottom() -> None:
    cells = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds == {"stream", "execute_result"}  # and no error
    assert not any(word in NOTEBOOK.read_text() for word in ("/tmp/", "/home/", "/root/"))


@pytest.mark.thorough
def test_it_runs_in_a_fresh_interpreter(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*CODE, SHOWN])], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    left = json.loads(done.stdout.splitlines()[-1])
    assert left["rounds"] == 8 and left["runs"] == 6 and left["accuracy"][0] == 6
    assert left["methods"] == left["table"] == ["fedavg", "median"]
    assert len(left["verdicts"]) == 1


def test_its_links_lead_somewhere() -> None:
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]*)", text)
    assert links and all((NOTEBOOK.parent / link).is_file() for link in links)
