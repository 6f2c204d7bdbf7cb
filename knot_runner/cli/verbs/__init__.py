"""The verbs of ``knot-runner VERB``, one file each; each parses its own arguments and returns the exit code."""
