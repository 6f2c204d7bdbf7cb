"""Federated Wasserstein distances (FedWaD, arXiv 2310.01973), and coresets that are learned with these distances.

Start in ``settings.py``.
"""
