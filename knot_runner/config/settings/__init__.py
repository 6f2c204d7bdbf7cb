"""Settings: one dataclass per config group, built strictly (``config/strict.py``) from the composed YAML.

Open ``run.py`` first: one run's settings, whole. ``text_tasks.py`` and ``image_tasks.py``: what is learned;
``methods/``: by what; ``checks.py``: whether they fit together.
"""
