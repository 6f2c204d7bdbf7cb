"""What ``knot-runner VERB`` does, one file per verb; each reads its own arguments and returns the exit code."""
