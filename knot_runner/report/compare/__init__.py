"""``knot-runner compare``: any runs side by side."""
