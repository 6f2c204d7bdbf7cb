"""Removes the plug-in of the sweep tests from the tables, for tests that list all settings."""

from __future__ import annotations

import sys

import pytest

from tests.plugin_tables import tables_restored  # noqa: F401


@pytest.fixture(autouse=True)
def faulty_removed(tables_restored):  # noqa: F811
    """Forget ``faults.py``, so that the next test loads it again."""
    yield
    sys.modules.pop("faults", None)
