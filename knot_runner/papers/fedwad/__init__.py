"""Federated Wasserstein distances (FedWaD, arXiv 2310.01973): distances, coresets. Open ``settings.py`` first."""
