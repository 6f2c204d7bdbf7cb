"""What engines that several runs use have in common: how one hears of an end, and to whom there is nothing to say."""

from __future__ import annotations


class Ended(RuntimeError):
    """The engine was closed while its caller waited: nothing is wrong with the request, and nobody carries it out."""


def silent(text: str) -> None:
    """Say nothing."""
