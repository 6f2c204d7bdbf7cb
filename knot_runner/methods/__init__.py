"""Methods, one file per family, as pure functions such as ``init``, ``plan`` and ``fold`` (``contract.py``)."""
