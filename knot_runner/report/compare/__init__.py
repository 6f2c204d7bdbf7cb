"""The command ``knot-runner compare``, which compares any runs."""
