"""The stacked engine, which trains many clients at once, step by step.

Start with ``engine.py``.
"""
