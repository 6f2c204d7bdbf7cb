"""Settings: dataclasses built strictly from plain values."""
