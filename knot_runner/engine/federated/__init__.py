"""Local training of a cohort of clients: one contract, several engines. Open ``loop.py`` first: the reference.

``cohort.py``: what is asked and answered; ``lean/``: worker processes on CPUs; ``stacked/``: a cohort as one program;
``ray_engine.py``: actors of a cluster; ``choose.py``: the engine named in ``hardware``.
"""
