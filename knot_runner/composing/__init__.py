"""Composition of jobs from a command line (overrides, presets) and YAML files, including the user's files."""
