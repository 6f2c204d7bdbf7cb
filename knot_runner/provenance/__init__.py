"""Whether a finished run would come out the same today: with our code, plug-ins, torch and files as they are.

Settings that can change a run's numbers are in its run id. These are not, since they change without any setting: a
result says them (:func:`made_by`, and the ``files`` of its task), and :func:`reasons` compares.
"""

from knot_runner.provenance.code import code_changes, code_version, made_by
from knot_runner.provenance.fingerprints import Now, Opened
from knot_runner.provenance.staleness import (
    DATA_CHANGE,
    CurrentData,
    data_changes,
    on_data,
    reasons,
    refusal,
    set_aside,
    staleness_line,
)
