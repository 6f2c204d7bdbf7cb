"""Pipelines turn settings into results: one file per kind of run, with its parts in folders. Start in ``federated.py``.

``run.py`` (one run), ``context.py`` (its inputs) and ``rounds.py`` serve all kinds. ``clients.py`` and
``personalization/`` serve federated runs, ``federations/`` and ``parties/`` distillations, ``features/`` distances.
"""
