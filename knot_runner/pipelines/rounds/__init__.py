"""The one loop of all methods, rounds in which clients train, and what a row of ``rounds.jsonl`` says.

Open ``loop.py`` first.
"""
