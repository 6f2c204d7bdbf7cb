"""Federated Wasserstein distances (FedWaD, arXiv 2310.01973) and their use for coresets. Start in ``settings.py``."""
