"""From a command line and YAML to checked jobs: overrides, presets, the user's own YAML."""
