"""Settings of the methods that come with the package, but for distillation by loss terms (``distil/``).

Open ``federated.py`` first.
"""
