"""Many jobs from one command: each in a process of its own (or a thread of a fused one), none of which stops another.

``plan.py``: what is to be done; ``launching.py``: hands it to a launcher; ``task.py``: one job, seen from the
launcher; ``job.py``: the same from inside; ``fused.py``, ``driver.py``: all jobs as one program; ``state.py``: what a
run's folder says of it; ``board.py``, ``summary.py``: what a person sees.
"""
