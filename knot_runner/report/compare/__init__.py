"""``knot-runner compare``: compares any runs."""
