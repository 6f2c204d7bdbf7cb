"""Pipelines compute the result of a run from its settings. Each kind of run has a file; start in ``federated.py``.

All kinds use ``run.py`` (executes a run), ``context.py`` (the input of pipelines) and ``rounds.py`` (the round loop).
Federated runs use ``clients.py`` and ``personalization/``, and distillations ``federations/`` and ``parties/``.
"""
