"""Comparison of model soups with other personalization methods. Fine-tuning and soups are part of the core."""
