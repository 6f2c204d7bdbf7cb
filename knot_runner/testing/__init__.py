"""Checks that a custom entry of a table (a method, a loss term, ...) follows the rules for entries of this table.

The package's own entries pass the same checks. Each check raises ``AssertionError`` with a message that describes the
problem, and needs no test framework.

* :func:`check_method`: a federated algorithm, with small runs
* :func:`check_partition`: a partition of images over clients
* :func:`check_reader`: a reader of image or text files
* :func:`check_term`: a loss term of distillation
* :func:`check_weighting`: a weighting of teachers
"""

from knot_runner.testing.data import check_partition, check_reader
from knot_runner.testing.distillation import check_term, check_weighting
from knot_runner.testing.methods import check_method
