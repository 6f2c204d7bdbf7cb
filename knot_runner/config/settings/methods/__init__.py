"""Settings of the package's methods. Start with ``federated.py``."""
