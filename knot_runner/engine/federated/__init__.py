"""Local training of a cohort of clients: one contract, several engines. Open ``loop.py`` first: the reference.

``cohort.py``: what is asked and answered; ``lean/``: worker processes on CPUs; ``native/``: these with passes in C++;
``stacked/``: a cohort as one program; ``engine_pool.py``: engines that several runs of one process use.
"""
