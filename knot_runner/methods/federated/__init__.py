"""Federated methods, one file per family: they request local training and average the results."""
