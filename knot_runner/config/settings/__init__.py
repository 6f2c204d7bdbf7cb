"""Settings: one dataclass per config group, built from the composed YAML with all checks of ``config/strict.py``.

Start with ``run.py``, which has the settings of a whole run. ``text_tasks.py`` and ``image_tasks.py`` define tasks,
``methods/`` defines methods, and ``checks.py`` checks that tasks, methods and other groups fit together.
"""
