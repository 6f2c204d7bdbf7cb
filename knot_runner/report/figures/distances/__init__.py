"""Figures of federated distances, of distances between data sets, and of coresets."""
