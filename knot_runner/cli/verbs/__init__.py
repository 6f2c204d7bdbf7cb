"""The verbs of ``knot-runner VERB``. Each parses its arguments and returns the exit code."""
