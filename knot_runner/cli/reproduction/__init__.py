"""``knot-runner reproduce``: which presets to run in the time there is, their processes, and what came out."""
