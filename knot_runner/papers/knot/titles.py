"""The titles of KNOT's methods, in the order of the paper's tables."""

from __future__ import annotations

from knot_runner.report.render.table_model import METHOD_TITLES

for loss in ("entropy", "sinkhorn"):
    for weighting in "adue":
        METHOD_TITLES[f"{loss}_{weighting}"] = f"{loss.title()}-{weighting.upper()}"
