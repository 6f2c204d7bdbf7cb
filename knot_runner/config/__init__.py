"""Settings of runs as dataclasses, which are built from YAML values."""
