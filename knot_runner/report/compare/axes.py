"""Which settings ``compare`` shows: those that tell runs apart, and for a best-of those searched and all others."""

from __future__ import annotations

from collections.abc import Sequence

from knot_runner.report.compare.groups import SEED, group_runs
from knot_runner.report.compare.records import RunRecord, differing
from knot_runner.report.compare.settings import telling
from knot_runner.util.errors import UserError

Keys = tuple[str, ...]


def apart(records: Sequence[RunRecord], less: Sequence[str] = ()) -> Keys:
    """The few settings that tell ``records`` apart; not the seed, not ``less``, nor what ``less`` names as a whole."""
    keys, rows = differing(records)
    return tuple(telling(rows, [key for key in keys if key != SEED and key not in less and not _inside(key, less)]))


def searched(records: Sequence[RunRecord], by: Keys | None, over: Keys) -> tuple[Keys, Keys]:
    """(Settings of a row, settings searched in it) of a best-of; what is not given is all that tells runs apart else.

    With ``method.name`` searched, other settings of the method in which runs of one name differ are searched as well.
    Raises :class:`UserError` where there is nothing to select from.
    """
    if by is None and not over:
        differences = ", ".join(apart(records)) or "nothing but the seed"
        raise UserError(f"--best: --over=KEY says what was searched; the runs differ in {differences}")
    if SEED in over:
        raise UserError("--over=seed: means are over seeds; --over=KEY, another setting, would be right")
    over = _with_their_groups(records, over) if over else apart(records, by or ())
    rows = apart(records, over) if by is None else by
    if set(over) & set(rows) or all(len(group_runs(one.records, over)) == 1 for one in group_runs(records, rows)):
        raise UserError("--over: in no row is there more than one value of it to select from")
    return rows, over


def _with_their_groups(records: Sequence[RunRecord], over: Keys) -> Keys:
    keys, rows = differing(records)
    inside = [key for key in keys if key not in over and _inside(key, over)]
    return tuple(dict.fromkeys((*over, *telling(rows, [*over, *inside], kept=over))))


def _inside(key: str, names: Sequence[str]) -> bool:
    """Whether ``key`` belongs to a choice that one of ``names`` is the name of, as ``method.mu`` to ``method.name``."""
    groups = tuple(name.removesuffix("name") for name in names if name.endswith(".name"))
    return key.startswith(groups)
