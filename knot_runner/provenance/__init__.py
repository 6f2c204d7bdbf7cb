"""Checks of whether a finished run is reproducible with the current code, plug-ins, torch and data files.

The run id covers settings that affect a run's numbers. It does not cover code and files, which change without any
setting. The result therefore records them (:func:`made_by`, and the ``files`` of its task), and :func:`reasons`
compares.
"""

from knot_runner.provenance.fingerprints import Now, Opened
from knot_runner.provenance.staleness import (
    DATA_CHANGE,
    FILE_CHANGE,
    CurrentData,
    blocking,
    code_changes,
    code_version,
    data_changes,
    made_by,
    reasons,
    refusal,
    set_aside,
    staleness_line,
)
