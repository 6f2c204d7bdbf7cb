"""Settings of distillation by loss terms: its terms, images made from a teacher, what of it names a run.

Open ``distil.py`` first.
"""
