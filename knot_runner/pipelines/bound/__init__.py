"""The bound of KNOT's Theorem 5.2 of a finished distillation, on its stored stages.

Open ``measure.py`` first.
"""
