"""Validation of records, and the terminal summary of each kind of run."""
