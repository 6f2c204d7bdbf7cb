"""The CPU engine: worker processes train one client at a time and share memory, with manual backward passes.

Start with ``engine.py``, then read ``client.py``. ``network.py``: one training step, its SGD, the loss and its
gradient; ``stems.py``, ``dense.py``: the layers' forward and backward passes.
"""
