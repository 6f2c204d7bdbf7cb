"""Tables that plug-ins add to, and a fixture after which they are as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from knot_runner import CLAIM_MEASURES, FIGURES, LOSSES, METHODS, METRICS, TABLE_KINDS, TERMS, TRACKERS, WEIGHTINGS
from knot_runner.config.settings.families import FAMILIES, METHOD_SETTINGS
from knot_runner.config.settings.image_tasks import IMAGE_READERS
from knot_runner.config.settings.partition import PARTITION_SETTINGS
from knot_runner.config.settings.text_tasks import TEXT_READERS
from knot_runner.data.images.partition import PARTITIONS
from knot_runner.metrics import NUMBERS

EXAMPLES = Path(__file__).parent / "plugins"
TABLES = (
    FAMILIES, METHOD_SETTINGS, PARTITION_SETTINGS, IMAGE_READERS, PARTITIONS, TEXT_READERS, TRACKERS, METHODS, TERMS,
    LOSSES, WEIGHTINGS, METRICS, NUMBERS, CLAIM_MEASURES, FIGURES, TABLE_KINDS,
)  # fmt: skip


@pytest.fixture
def tables_restored() -> Iterator[None]:
    """Remove what the plug-ins of a test added, so that the next test reads its own."""
    for table in TABLES:
        iter(table)  # what papers add is there from now on
    before = [(dict(table.data), dict(table._settings)) for table in TABLES]
    yield
    for table, (entries, settings) in zip(TABLES, before, strict=True):
        for now, then in ((table.data, entries), (table._settings, settings)):
            now.clear()
            now.update(then)
    for name in ("bad", *(path.stem for path in EXAMPLES.glob("*.py"))):
        sys.modules.pop(name, None)
