"""Optional engines. ``hardware.engine=NAME`` loads the folder NAME, which adds its engine to ``ENGINES``."""
