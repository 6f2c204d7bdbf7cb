"""Models of texts and images."""
