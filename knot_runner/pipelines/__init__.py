"""From settings to a result: one file here per kind of run, their parts in folders. Open ``federated.py`` first.

``run.py`` (one run), ``context.py`` (its inputs) and ``rounds.py`` serve all kinds; ``clients.py`` and
``personalization/`` federated runs; ``federations/`` and ``parties/`` distillations; ``features/`` distances.
"""
