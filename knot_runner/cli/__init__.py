"""The command line: ``knot-runner`` and its verbs."""
