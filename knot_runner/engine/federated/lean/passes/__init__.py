"""One training step of the lean engine by hand: forward and backward passes of the layers, losses, SGD in place.

Open ``network.py`` first.
"""
