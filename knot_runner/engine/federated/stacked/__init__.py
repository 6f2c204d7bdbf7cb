"""Train a whole cohort as one program: steps are planned in advance, and all clients take each step together.

Start with ``engine.py``.
"""
