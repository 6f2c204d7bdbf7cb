"""The CPU engine: worker processes train one client at a time and share memory; what they compute is in ``passes/``.

Open ``engine.py`` first, then ``client.py``.
"""
