"""Settings of the methods that come with the package.

Open ``federated.py`` first.
"""
