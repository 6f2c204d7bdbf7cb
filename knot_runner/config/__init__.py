"""Settings: dataclasses, built from plain values with a check of every key and type."""
