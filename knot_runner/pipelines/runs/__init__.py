"""What every run goes through: its needs, the model it begins with, its commits and what else outlives a kill.

Open ``single_run.py`` first: one run, whole; what all of it is given is ``pipelines/context.py``.
"""
