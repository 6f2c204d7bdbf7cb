"""Local training of a cohort of clients: one interface, several engines. Start with ``loop.py``, the reference.

``cohort.py``: requests and results; ``lean/``: worker processes on CPUs; ``stacked/``: a whole cohort trained as one
program; ``ray_engine.py``: actors in a Ray cluster; ``choose.py``: selection of the engine by ``hardware``.
"""
