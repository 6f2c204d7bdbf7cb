"""The loop of rounds that all methods share, rounds of clients, and the rows of ``rounds.jsonl``.

Start with ``loop.py``.
"""
