"""Selection of the best values of searched settings.

Each combination of values is a candidate. The candidate with the best mean over seeds is selected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knot_runner.report.compare.measures import Direction, direction, measure_title, resolve_measure
from knot_runner.report.compare.settings import SEED, row_numbers, telling
from knot_runner.report.frame import RunSet
from knot_runner.report.run_rows import variant
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """A rule that selects the best values of the searched settings.

    Attributes:
        measure: The measure whose mean over seeds is compared.
        better: Whether a higher or a lower mean is better.
        over: The searched settings.
    """

    measure: str
    better: Direction
    over: Keys


def selection_rule(text: str, over: Keys, measures: Sequence[str]) -> Rule:
    """Return the selection rule that the user requests.

    Args:
        text: The user's text: ``KEY``, ``min:KEY`` or ``max:KEY``, where KEY is a measure.
        over: The searched settings.
        measures: The known measures.

    Raises:
        UserError: The measure is unknown, or it is unknown whether higher or lower values are better.
    """
    senses: dict[str, Direction] = {"min": "lower", "max": "higher"}
    sense, _, name = text.rpartition(":")
    if sense and sense not in senses:
        raise UserError("expected min:KEY or max:KEY", f"--best={text}")
    key = resolve_measure(name, measures, "--best")
    better = senses.get(sense) or direction(key)
    if better is None:
        raise UserError(
            f"unknown whether larger or smaller values are better. Use --best=max:{name} or --best=min:{name}",
            f"--best={text}",
        )
    return Rule(key, better, over)


def searched(runs: RunSet, by: Keys | None, over: Keys) -> tuple[Keys, Keys]:
    """Return the settings that define the rows of the table, and the settings that are searched in each row.

    Args:
        runs: The runs to compare.
        by: The settings that define the rows. None selects the settings that distinguish the runs, except the searched
            settings.
        over: The searched settings. If they contain ``method.name``, the settings of ``method`` in which the runs
            differ are searched, too. If ``over`` is (), the settings that distinguish the runs of a row are searched.

    Raises:
        UserError: No row has several values of the searched settings, or the seed is searched.
    """
    differing = runs.differing()
    if by is None and not over:
        differences = ", ".join(identifying_keys(differing)) or "nothing but the seed"
        raise UserError(f"requires --over=KEYS (the settings to compare). These runs differ in {differences}", "--best")
    if SEED in over:
        raise UserError("the values are already averaged over seeds. Use another setting", "--over=seed")
    if over:
        inside = [key for key in differing if key not in over and _is_inside(key, over)]
        over = tuple(dict.fromkeys((*over, *telling(differing, [*over, *inside], kept=over))))
    else:
        over = identifying_keys(differing, by or ())
    rows = identifying_keys(differing, over) if by is None else by
    candidates = row_numbers(runs.settings, tuple(dict.fromkeys((*rows, *over)))).nunique()
    if set(over) & set(rows) or candidates == row_numbers(runs.settings, rows).nunique():
        raise UserError("the settings to compare do not differ between the runs of a row. Use other settings", "--over")
    return rows, over


def identifying_keys(differing: pd.DataFrame, less: Sequence[str] = ()) -> Keys:
    """Return the keys of a few settings that together distinguish the runs. The seed is never returned.

    Args:
        differing: A frame of the settings in which the runs differ.
        less: Keys that are not returned. A key such as ``method.name`` also excludes the other settings of its group,
            such as ``method.mu``.
    """
    keys = [key for key in differing if key != SEED and key not in less and not _is_inside(key, less)]
    return tuple(telling(differing, keys))


def _is_inside(key: str, names: Sequence[str]) -> bool:
    """Return whether ``key`` (``method.mu``) is in a group that one of ``names`` (``method.name``) selects."""
    return key.startswith(tuple(name.removesuffix("name") for name in names if name.endswith(".name")))


def choose(runs: RunSet, rule: Rule) -> tuple[RunSet, pd.DataFrame]:
    """Select the best candidate in each row of the table.

    A candidate is a combination of values of the searched settings. Its seeds are the seeds of its runs in which the
    measure was recorded. All candidates of a row are compared at the same set of seeds. If the candidates have
    different sets, the most common set is used. A candidate is eligible if its seeds include this set.

    Args:
        runs: The runs, grouped by :meth:`RunSet.grouped`. The runs of a row differ only in the seed and in the searched
            settings.
        rule: The selection rule.

    Returns:
        The finished runs of the best candidates at the compared seeds, and a frame with one row per table row. The
        frame has these columns:

        - ``n``: the number of selected runs
        - ``settings``: the number of candidates
        - ``fit``: the number of eligible candidates

    Raises:
        UserError: The measure has several variants in the same row, see :func:`variant`.
    """
    import pandas as pd

    done = runs.finished.runs
    for in_row in done.run.map(lambda run: variant(rule.measure, run.result)).groupby(done.row).unique():
        if len(in_row) > 1:
            problem = f"a row mixes several kinds ({'; '.join(in_row)}). Filter the runs, as by method.name=NAME"
            raise UserError(problem, f"--best={measure_title(rule.measure)}")
    table = runs.runs[["seed", "state", "row"]].assign(candidate=row_numbers(runs.settings, rule.over))
    chosen = pd.Series(False, table.index)
    fit = {}
    for row, measured in table.join(runs.values(rule.measure), how="inner").groupby("row"):
        seeds = measured.groupby("candidate").seed.agg(frozenset)
        compared = _most_common(seeds)
        eligible = seeds.index[seeds.map(compared.issubset)]
        fit[row] = len(eligible)
        at = measured[measured.seed.isin(compared) & measured.candidate.isin(eligible)]
        means = at.groupby("candidate").value.agg(lambda values: sum(values) / len(values))
        best = means.idxmin() if rule.better == "lower" else means.idxmax()  # ties: the first
        chosen |= (table.row == row) & (table.candidate == best) & table.seed.isin(compared) & (table.state == "done")
    counts = table.groupby("row").candidate.nunique().to_frame("settings")
    counts = counts.assign(n=table.row[chosen].value_counts(), fit=pd.Series(fit, dtype="int64"))
    return runs.only(chosen), counts.fillna(0).astype("int64")


def _most_common(seeds: pd.Series) -> frozenset[int]:
    """Return the set of seeds that the most candidates have; if several sets are equally common, the largest set."""
    counted = Counter(seeds)
    return max(counted, key=lambda group: (counted[group], len(group), sorted(group, reverse=True)))


def selection_line(rule: Rule, counts: pd.DataFrame, keys: Sequence[str]) -> Iterator[str]:
    """Yield lines that explain how the best candidates were selected, and why their results are optimistic."""
    per = f" per {', '.join(keys)}" if keys else ""
    tried = counts.settings
    number = " to ".join(map(str, dict.fromkeys((tried.min(), tried.max()))))
    best = {"higher": "highest", "lower": "lowest"}[rule.better]
    yield (
        f"Selected{per}: of {number} settings of {', '.join(rule.over)}, the setting with the {best} mean of "
        f"{measure_title(rule.measure)} over the seeds that most of these settings have (the first, if several are "
        "equal). Whether this setting is better than the second best is not tested."
    )
    short = (tried - counts.fit).sum()
    if short:
        yield (
            f"{short} settings were not considered, since they have no value for one of these seeds (diverged or "
            "missing)."
        )
    yield (
        "The selection uses the reported numbers, which are therefore optimistic, especially with many settings. With "
        "partition.valid, --best=valid.accuracy selects on examples that clients hold out."
    )
