"""Results of runs: one dataclass per kind, from which ``result.json`` is written and as which it is read back.

Building the dataclass validates the result: every value has its type and range, and related values agree.
"""

from __future__ import annotations

from typing import Any

from knot_runner.config.settings.families import FAMILIES, load
from knot_runner.config.strict import build
from knot_runner.results.base import DivergedResult, RunResult
from knot_runner.util.errors import UserError


def result_of(content: dict[str, Any]) -> RunResult:
    """Returns the result of which ``content`` is the plain data. Raises :class:`UserError` naming the wrong key."""
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(f"{kind!r:.40} is no kind of run here", "kind", hint="Load its plug-in with plugins=[...]")
    cls = DivergedResult if content.get("status") == "diverged" else load(FAMILIES[kind].result)
    try:
        return build(cls, content, "")
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):  # of a bundle that no run writes
        raise UserError("has values of other kinds") from None
