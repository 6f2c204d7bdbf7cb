"""Sums of printed tables, so that each cell is checked twice."""


def sums(rows, unit):
    """Of each row and each column, in whole units: a cell that is off shows in one of each."""
    whole = [[round(value * unit) for value in row] for row in rows]
    return [sum(row) for row in whole], [sum(column) for column in zip(*whole, strict=True)]
