"""Settings of runs, with one dataclass per config group.

``run.py`` has the settings of a whole run. ``text_tasks.py`` and ``image_tasks.py`` define tasks, and ``methods/``
defines methods. ``checks.py`` checks that the chosen task, method and other groups fit together.
"""
