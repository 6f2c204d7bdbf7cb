"""Composition of jobs from overrides, presets, and the YAML files of the package and the user."""
