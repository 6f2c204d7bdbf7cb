"""Settings of what is learnt: a task of texts or of images, and what stands for a text where data are compared.

Open ``task.py`` first.
"""
