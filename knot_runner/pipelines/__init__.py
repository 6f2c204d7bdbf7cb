"""From settings to a result: one pipeline per family of methods."""
