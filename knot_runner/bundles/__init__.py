"""Bundles: finished runs in one archive, which others can rerun and compare."""
