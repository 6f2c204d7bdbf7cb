"""A preset's results as one HTML page."""
