"""Settings of what is learnt: a task of texts or of images.

Open ``task.py`` first.
"""
