"""Bundles: packs finished runs into one archive for others to rerun, reads bundles, and compares reruns."""
