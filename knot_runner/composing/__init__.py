"""Composition of checked jobs from a command line and YAML files: overrides, presets, the user's YAML."""
