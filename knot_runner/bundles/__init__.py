"""Bundles: archives of finished runs. Other users can rerun these runs and compare the results."""
