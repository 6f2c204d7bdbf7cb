"""The whole cohort as one program: steps planned ahead, one step for all clients at once.

Open ``engine.py`` first.
"""
