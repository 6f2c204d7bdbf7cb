"""Fixtures of the papers' tests: those of unit tests and oracles."""

from tests.oracles.conftest import *  # noqa: F403
from tests.unit.conftest import *  # noqa: F403
