"""Names and numbers as text: escaped for the place they go to, and printed the way the paper prints them."""

from __future__ import annotations

import re

from knot_runner.report.cells import Cell, Table

# C0, C1, and the marks that reorder or hide text
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$",
}  # fmt: skip


# --------------------------------------------------------------------------------------------------- names and numbers


def plain(text: str) -> str:
    """``text`` in one line with control and invisible characters (ANSI codes among them) as ``?``."""
    return _CONTROL.sub("?", text)


def escape_markdown(text: str) -> str:
    """``text`` so that Markdown and HTML show it as it is."""
    text = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|!~$])", r"\\\1", text)


def escape_latex(text: str) -> str:
    """``text`` so that LaTeX prints it as it is."""
    return "".join(_LATEX.get(letter, letter) for letter in plain(text))


def escape_csv(text: str) -> str:
    """``text`` so that no spreadsheet takes it for a formula (quoting is left to ``csv``)."""
    text = plain(text)
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") else text


def number(value: float, digits: int) -> str:
    """``0.4123`` as ``.412`` (three digits); counts (``digits`` 0) with thousands separators."""
    if digits == 0:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(round(value, digits)) < 1 else f"{value:.{digits}f}"


def value_text(cell: Cell, digits: int) -> str:
    """Our mean as printed; ``div.`` when runs diverged and none finished, ``-`` when there is nothing."""
    if cell.mean is not None:
        return number(cell.mean, digits)
    return "div." if cell.diverged else "-"


def half_text(cell: Cell, digits: int) -> str:
    """``±.010``, or "" without an interval (under two seeds, and for counts that agree)."""
    return f"±{number(cell.half, digits)}" if cell.half is not None and (digits or cell.half) else ""


def paper_text(cell: Cell, digits: int) -> str:
    """The paper's number in brackets, with the two digits it prints; "" if it prints none."""
    return f"({number(cell.paper, min(digits, 2))})" if cell.paper is not None else ""


def caption(table: Table, mark: str) -> str:
    """How to read a cell of ``table``, in one line; ``mark`` says how the best of a column is shown."""
    has_paper = any(cell.paper is not None for row in table.rows for cells in row.cells.values() for cell in cells)
    ranked = any(group.better for group in table.groups)
    parts = ["mean ± half of the 95% interval over seeds", "(paper)" if has_paper else "", mark if ranked else ""]
    return "; ".join(filter(None, parts)) + "."
