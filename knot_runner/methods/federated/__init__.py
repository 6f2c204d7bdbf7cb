"""Federated methods, one file per family. Methods request local training and combine the results."""
