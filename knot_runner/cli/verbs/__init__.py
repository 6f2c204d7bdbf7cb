"""The verbs of ``knot-runner VERB``. Each verb is a function that returns the exit code."""
