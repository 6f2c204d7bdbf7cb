"""Text models and image models."""
