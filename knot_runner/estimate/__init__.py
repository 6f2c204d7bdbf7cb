"""Estimates the cost of a sweep before it starts: jobs are pieces of work, timed or looked up in finished runs."""
