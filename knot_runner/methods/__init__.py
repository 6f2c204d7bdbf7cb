"""Methods, one file per family, as pure functions such as ``plan`` and ``fold``, the server step (``contract.py``)."""
