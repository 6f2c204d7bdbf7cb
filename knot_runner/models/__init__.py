"""Text models and image models, and the tokenization of texts."""
