"""``scripts/tour.ipynb``: a valid notebook, whose code runs and ends with the frames that it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[2] / "scripts" / "tour.ipynb"
CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]


def test_tour_outputs_come_from_one_ordered_run() -> None:
    cells = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds == {"stream", "execute_result"}  # and no error
    assert not any(word in NOTEBOOK.read_text() for word in ("/tmp/", "/home/", "/root/"))


def test_tour_links_lead_to_files() -> None:
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]*)", text)
    assert links and all((NOTEBOOK.parent / link).is_file() for link in links)
