"""``hardware.engine=native``: the lean engine with passes in C++, compiled once for the machine.

Open :mod:`~knot_runner.engine.federated.native.client` first: which work the compiled passes do. ``perceptron.cpp``: an
epoch of an MLP; ``pooled_convolution.cpp``: pooling and the convolutions' gradients; ``library.py``: compiles and calls.
"""
