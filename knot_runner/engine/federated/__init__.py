"""Engines: objects that run the local training of the clients of one round (the cohort).

- ``cohort.py``: requests to an engine, and results
- ``loop.py``: the reference engine, which trains one client after another with autograd. Start with this file.
- ``lean/``: the engine for CPUs, which trains clients in worker processes
- ``stacked/``: the engine that trains many clients at once, usually on a GPU
- ``choose.py``: selection of the engine by ``hardware.engine``
"""
