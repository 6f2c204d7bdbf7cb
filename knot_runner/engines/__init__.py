"""Optional engines. The folder NAME is loaded for ``hardware.engine=NAME``, and adds itself to ``ENGINES``."""
