"""``hardware.engine=native``: the lean engine with training passes in C++, compiled once for the machine.

Start with ``engine.py``, which decides which work the compiled passes do. ``perceptron.cpp``: an epoch of an MLP, with
``dense.h``; ``pooled_convolution.cpp``: pooling and the gradients of a CNN's convolutions; ``winograd.cpp``: 3x3
convolutions of ResNets, wide ResNets and VGGs; ``library.py``: compiling and loading the C++ files.
"""

from knot_runner.config.settings.groups import ENGINES

ENGINES["native"] = "knot_runner.engines.native.engine:make_native"
