"""Checks for parts of your own: each raises AssertionError with a message that says what is wrong. No pytest is needed.

- ``check_reader``, ``check_partition``: a reader of image or text files, and a partition over clients.
"""

from knot_runner.testing.data import check_partition as check_partition
from knot_runner.testing.data import check_reader as check_reader
