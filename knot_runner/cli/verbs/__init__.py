"""The verbs of ``knot-runner VERB``; each parses its own arguments and returns the exit code."""
