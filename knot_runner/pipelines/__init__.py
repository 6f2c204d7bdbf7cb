"""From settings to a result: one file here per kind of run, their parts in rooms. Open ``federated.py`` first.

``run.py`` (one run), ``context.py`` (what each is given) and ``rounds/`` serve all kinds; ``clients/`` and
``personalization/`` federated runs; ``federations/`` and ``parties/`` distillations; ``features/``
distances between clients' data.
"""
