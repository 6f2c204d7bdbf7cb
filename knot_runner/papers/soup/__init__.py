"""Comparisons of soups with other personalizations of clients' models. Fine-tuning and soups are part of the core."""
