"""Sweeps: one command runs many jobs, each in a separate process, so that a failure does not stop other jobs.

- ``plan.py``: the files that describe the jobs of a sweep
- ``launchers.py``: passes the jobs to one of Hydra's launchers
- ``task.py``: one job, as seen by the launcher's process
- ``job.py``: one job, in the job's own process
- ``state.py``: reads the state of a run from the run's folder
- ``board.py``: shows progress and a summary to the user
"""
