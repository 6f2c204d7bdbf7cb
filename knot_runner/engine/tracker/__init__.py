"""Trackers mirror a run: Weights & Biases, TensorBoard, MLflow, or one of a plug-in (``TRACKERS["name"] = begin``)."""

from knot_runner.engine.tracker.mirror import Mirror, TrackedRun
from knot_runner.engine.tracker.tracker import TRACKERS, Tracker
