"""Bundles: archives of finished runs. Others can rerun these runs and compare the results."""
