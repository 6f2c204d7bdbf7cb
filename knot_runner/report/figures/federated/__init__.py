"""Figures of federated runs: rounds, partitions, temperature probes, clients' own models."""
