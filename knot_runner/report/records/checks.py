"""Whether a value of a record can be one."""

from __future__ import annotations

import math
from typing import Any


def is_number(value: Any, top: float = math.inf) -> bool:
    """A finite number from 0 to ``top``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= top and value < math.inf


def is_count(value: Any, least: int = 0) -> bool:
    """A whole number of at least ``least``."""
    return isinstance(value, int) and is_number(value) and value >= least
