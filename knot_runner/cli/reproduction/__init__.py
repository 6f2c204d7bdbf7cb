"""``knot-runner reproduce``: chooses the presets to run in the available time, runs them and shows the results."""
