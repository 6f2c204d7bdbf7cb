"""``hardware.engine=native``: the lean engine with passes in C++, compiled once for the machine.

Open ``client.py`` first: which work the compiled passes do. ``perceptron.cpp``: an epoch of an MLP, by ``dense.h``;
``pooled_convolution.cpp``: pooling and the gradients of convolutions; ``library.py`` compiles and loads them.
"""
