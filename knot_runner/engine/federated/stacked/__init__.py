"""Training of a whole cohort as one program: steps are planned ahead, and each is taken by all clients at once.

Start with ``engine.py``.
"""
