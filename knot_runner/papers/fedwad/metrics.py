"""The numbers of FedWaD's runs that tables and comparisons show: distances, and the classes that a coreset covers."""

from __future__ import annotations

from knot_runner.metrics import METRICS, NUMBERS, Metric, ResultNumber

METRICS["distance"] = Metric("distance", "lower", preferred=True)
NUMBERS.update(value=ResultNumber(preferred=True), classes_covered=ResultNumber("higher"))
