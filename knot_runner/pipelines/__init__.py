"""Pipelines. A pipeline computes the result of one kind of run from the run's settings.

Start in ``federated.py`` or ``distillation.py``. All pipelines use three modules:

- ``run.py``: execution of a run
- ``context.py``: the input of a pipeline
- ``rounds.py``: the round loop
"""
