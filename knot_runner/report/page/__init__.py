"""HTML page with the results of a preset."""
