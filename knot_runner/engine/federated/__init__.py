"""Engines: local training of a cohort (the clients of one round). Start with ``loop.py``, the reference engine.

``cohort.py``: requests and results; ``lean/``: worker processes on CPUs; ``stacked/``: a whole cohort trained as one
program; ``choose.py``: selection of the engine by ``hardware``.
"""
