"""Whether a value of a record can be one: what the checks of all kinds of record are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

#: (value, the record it is in) -> whether it can be one
Check = Callable[[Any, dict[str, Any]], bool]
#: what a record of a kind must hold, and what it may: key -> check
Checks = tuple[dict[str, Check], dict[str, Check]]


def is_number(value: Any, top: float = math.inf) -> bool:
    """A finite number from 0 to ``top``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= top and value < math.inf


def is_count(value: Any, least: int = 0) -> bool:
    """A whole number of at least ``least``."""
    return isinstance(value, int) and is_number(value) and value >= least
