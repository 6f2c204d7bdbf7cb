"""Runs many jobs from one command, each in a process of its own; no failure stops another.

``plan.py``: the jobs and how to run them; ``launchers.py``: passes them to a launcher, ours are there; ``task.py``: one
job, on the launcher's side; ``job.py``: the same in the job's process;
``state.py``: a run's state from its folder; ``board.py``: output for the user.
"""
