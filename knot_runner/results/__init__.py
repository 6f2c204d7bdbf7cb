"""Results of runs: one dataclass per kind of run, which ``result.json`` is written from and read as.

The constructor of the dataclass validates the result: every value has its type and range, and related values agree.
"""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings.families import FAMILIES, load
from knot_runner.config.strict import build
from knot_runner.results.base import DivergedResult, RunResult
from knot_runner.util.errors import UserError


def result_of(content: dict[str, Any]) -> RunResult:
    """Return the result with the plain data ``content``.

    If the plug-in of its family is not loaded, it has only the fields that all results share.

    Raises:
        UserError: A key is wrong.
    """
    family = FAMILIES.get(str(content.get("kind")))
    cls: type[RunResult] = load(family.result) if family else RunResult
    if content.get("status") == "diverged":
        cls = DivergedResult
    if family is None:
        content = {key: value for key, value in content.items() if key in RunResult.__dataclass_fields__}
    try:
        return build(cls, content, "")
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):  # of a bundle that no run writes
        raise UserError("has values of other kinds") from None
