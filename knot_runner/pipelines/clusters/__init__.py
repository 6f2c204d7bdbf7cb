"""Clusters of clients that are trained apart, and the run's rows that they make together.

Open ``training.py`` first.
"""
