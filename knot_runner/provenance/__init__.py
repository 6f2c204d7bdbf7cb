"""Whether a finished run is still reproducible with the current code, plug-ins, torch and data files.

Settings that affect a run's numbers are in its run id. Code and files are not, since they change without any setting:
the result records them (:func:`made_by`, and the ``files`` of its task), and :func:`reasons` compares.
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
