"""Settings of a task of texts or of images. Start with ``task.py``."""
