"""``knot-runner compare``: a comparison of any runs."""
