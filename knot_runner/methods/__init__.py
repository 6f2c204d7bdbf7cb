"""Methods: pure functions ``init``, ``plan``, ``fold`` and ``deployed``, in one file per family (``contract.py``)."""
