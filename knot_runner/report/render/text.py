"""Names and numbers as text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from knot_runner.report.render.table_model import ColumnGroup, ResultTable, TableCell
from knot_runner.report.statistics.intervals import MAX_SEEDS, Estimate, seeds_to_decide

# a group of settings as a value: {kind:soup,lr:0.01}
_GROUP = re.compile(r"\{([^{}\[\]\"']*)\}")
# the groups above each setting of a label, and the separator before them
_ABOVE = re.compile(r"(^|, )(?:(?!, )[^=])*\.")
# control characters C0 and C1, and characters that reorder or hide text
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$",
})  # fmt: skip


def plain(text: str) -> str:
    """Return ``text`` in one line, with ``?`` for each control or invisible character."""
    return _CONTROL.sub("?", text)


def short_line(label: str) -> str:
    """Return ``label`` with shortened keys, such as ``support=onehot`` instead of ``task.labels.support=onehot``."""
    return _ABOVE.sub(r"\1", label)


def escape_markdown(text: str) -> str:
    """Return ``text`` escaped for Markdown and HTML."""
    return re.sub(r"([\\`*_{}\[\]#|!~$])", r"\\\1", html.escape(plain(text), quote=False))


def escape_latex(text: str) -> str:
    """Return ``text`` escaped for LaTeX."""
    return plain(text).translate(_LATEX)


def escape_csv(text: str) -> str:
    """Return ``text`` in a form that no spreadsheet reads as a formula. Quotation marks are left to the CSV writer."""
    text = plain(text)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text


def label_settings(label: str) -> dict[str, str]:
    """Return a dict of the settings in a label, such as ``method.mu=0.1, training.lr=0.01``.

    A group of settings is split: ``a.b={kind:soup,lr:0.01}`` becomes the settings ``a.b.kind`` and ``a.b.lr``.
    """
    settings: dict[str, str] = {}
    for part in label.split(", "):
        key, _, value = part.partition("=")
        group = _GROUP.fullmatch(value)
        if group and group[1]:
            for member in group[1].split(","):
                name, _, text = member.partition(":")
                settings[f"{key}.{name}"] = text
        elif part:
            settings[key] = value
    return settings


def spelled_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return a dict from each label to the text to display.

    If a label has a group of settings, such as ``a.b={kind:soup,lr:0.01}``, its text lists each setting of the group
    separately, and omits settings that all ``labels`` share. The text of any other label is the label itself.
    """
    by_label = {}
    for label in labels:
        by_label[label] = list(map("=".join, label_settings(label).items()))
    shared = set.intersection(*map(set, by_label.values())) if len(by_label) > 1 else set()
    shown = {}
    for label, facts in by_label.items():
        shown[label] = label
        if _GROUP.search(label):
            shown[label] = ", ".join(fact for fact in facts if fact not in shared)
    return shown


def first_few(names: Sequence[str], most: int, gap: str = ", ", more: str = "") -> str:
    """Return a text with the first names and the number of omitted names, such as ``a, b and 3 more``.

    Args:
        names: The names.
        most: The maximum number of names to list.
        gap: The text between two names.
        more: A text to append if names are omitted.
    """
    rest = len(names) - most
    return gap.join(names[:most]) + (f" and {rest} more{more}" if rest > 0 else "")


def number(value: float, digits: int) -> str:
    """Return a number as text, rounded to ``digits`` decimals. For 0.4123 and three decimals, the text is ``0.412``.

    If ``digits`` is 0, the text has thousands separators.
    """
    return f"{value:,.0f}" if digits == 0 else f"{value:.{digits}f}"


def signed(value: float, digits: int, plus: bool = True) -> str:
    """Return ``value`` as text, as :func:`number` does. If ``plus`` is true, a positive number has a plus sign."""
    return ("+" if plus and round(value, digits) > 0 else "") + number(value, digits)


def cell_texts(cell: TableCell, group: ColumnGroup) -> tuple[str, str, str]:
    """Return three texts of a table cell: the mean, the interval, and the paper's number.

    - If there is no mean, the first text is ``div.`` (at least one run diverged) or ``-``.
    - The second text is an interval such as ``±0.010``. Without an interval, this text is the standard deviation.
    - The third text is the paper's number in parentheses, with the paper's standard deviation.

    The second or third text is "" if its number is unknown.
    """
    value = cell.text or "-"
    interval = ""
    paper = ""
    if cell.mean is not None and not cell.text:
        value = signed(cell.mean, group.digits, group.signed)
        half = cell.std if cell.half is None else cell.half
        if half is not None and (group.digits or half):
            few = too_few_seeds(cell)
            interval = spread_text(cell.mean, half, group.digits, cell.top)
            if few and group.signed:
                interval = f" {few}"
    elif cell.diverged and not cell.text:
        value = "div."
    if cell.paper is not None:
        digits = min(group.digits, group.paper_digits)
        paper = signed(cell.paper, digits, group.signed)
        if cell.paper_std is not None:
            paper += f"±{number(cell.paper_std, digits)}"
        paper = f"({paper})"
    return value, interval, paper


def too_few_seeds(estimate: Estimate) -> str:
    """Return a note such as ``n=2: too few seeds (~6)`` if the estimate has two seeds and its interval includes 0.

    Otherwise, return "". The note "(~6)" means that the interval over about six seeds would exclude 0, if the variance
    stays the same.
    """
    if estimate.n != 2 or estimate.mean is None or not estimate.half or estimate.half < abs(estimate.mean):
        return ""
    count = seeds_to_decide(estimate.mean, estimate.half, estimate.n)
    if count is None:
        return f"n=2: too few seeds (>{MAX_SEEDS})"
    return f"n=2: too few seeds (~{count})"


def spread_text(mean: float, half: float, digits: int, top: float | None) -> str:
    """Return the interval of a mean as text, such as ``±0.010``.

    If the interval exceeds the range from 0 to ``top``, return the ends of the clipped interval, such as
    `` [0.905, 1]``.

    Args:
        mean: The mean.
        half: The half-width of the interval.
        digits: The number of decimals.
        top: The largest possible value: 1 for fractions, 100 for percentages, None for other numbers.
    """
    low = mean - half
    high = mean + half
    if top is None or 0 <= low <= high <= top:
        return f"±{number(half, digits)}"
    ends = ["0", f"{top:g}"]
    if low > 0:
        ends[0] = number(low, digits)
    if high < top:
        ends[1] = number(high, digits)
    return f" [{', '.join(ends)}]"


def estimate_text(mean: float, half: float | None, digits: int, top: float | None) -> str:
    """Return a mean and its interval as text, such as ``0.412±0.010``. Without an interval, return only the mean."""
    return number(mean, digits) + ("" if half is None else spread_text(mean, half, digits, top))


CUT = "[low, high] if the interval is cut at 0 or 100%"
FEW = "too few seeds (~k): the interval includes 0, and k seeds would decide at the observed variance"


def caption(table: ResultTable) -> str:
    """Return one line that explains the numbers in a cell of ``table``."""
    if table.reading:
        return table.reading
    parts = {"mean ± half of the 95% interval over seeds": True, CUT: False, FEW: False, "(paper)": False}
    for row in table.rows:
        for group in table.groups:
            for cell in row.cells[group.key]:
                parts[CUT] |= bool(cell.top)
                parts[FEW] |= group.signed and bool(too_few_seeds(cell))
                parts["(paper)"] |= cell.paper is not None
    return "; ".join(part for part, shown in parts.items() if shown) + "."


def duration(seconds: float) -> str:
    """Return a duration as text: ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min".removesuffix(" 0 min")


#: Prefixes in steps of 1000.
PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def prefix_of(largest: float) -> tuple[str, float]:
    """Return a decimal prefix and its factor, such as ("k", 1000.0), for the amount ``largest``.

    The amount divided by the factor has one to three digits before the decimal point.
    """
    step = sum(abs(largest) >= 1000**power for power in range(1, len(PREFIXES)))
    return PREFIXES[step], 1000.0**step


def quantity(amount: float, unit: str) -> str:
    """Return ``amount`` with three significant digits and a decimal prefix, such as ``12.4 MB`` or ``340 B``."""
    prefix, factor = prefix_of(amount)
    value = amount / factor
    if f"{value:.3g}" == "1e+03" and prefix != PREFIXES[-1]:  # 999.9 rounds to a thousand
        return quantity(1000 * factor, unit)
    return f"{value:.3g} {prefix}{unit}"
