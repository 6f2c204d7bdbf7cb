"""Federated Wasserstein distances (FedWaD, arXiv 2310.01973): distances, coresets. Start with ``settings.py``."""
