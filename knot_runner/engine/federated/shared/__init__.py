"""Engines for runs that are threads of one process: pooled, exclusive, or trained as one stack.

Open ``engines.py`` first.
"""
