"""Soups of the clients' own models, and what they are compared with. Fine-tuning and soups are of the core."""
