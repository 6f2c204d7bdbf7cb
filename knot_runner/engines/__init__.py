"""Optional engines: a folder here named NAME is loaded for ``hardware.engine=NAME`` and adds itself to ``ENGINES``."""
