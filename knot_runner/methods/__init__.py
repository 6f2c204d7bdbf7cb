"""Methods, one file per family. A method is a set of pure functions such as ``plan`` (see ``contract.py``)."""
