"""Settings of what is learned: a task of texts or of images.

Open ``task.py`` first.
"""
