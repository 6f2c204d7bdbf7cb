"""Sweeps: many jobs from one command, each in its own process, so that a failure does not stop other jobs.

- ``plan.py``: the jobs and how to run them.
- ``launchers.py``: passes the jobs to one of Hydra's launchers or to our Ray launcher.
- ``task.py``: one job, in the process of the launcher; ``job.py``: one job, in its own process.
- ``state.py``: the state of a run, from its folder.
- ``board.py``: output for the user.
"""
