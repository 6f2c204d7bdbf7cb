"""Types of numeric settings, each with a range of sensible values.

The ranges exclude absurd values. They do not guarantee that data and models fit into memory.
"""

from __future__ import annotations

from typing import Annotated

from knot_runner.config.strict import AtMost, Holds, require
from knot_runner.util.config_yaml import Config


def at_least(low: float, note: str = "") -> Holds:
    """Return the condition that a setting is at least ``low``. Error messages print ``note`` after the condition."""
    return Holds(lambda value: value >= low, f"at least {low:g}{note}")


def between(low: float, high: float, note: str = "") -> Holds:
    """Return the condition that a setting is from ``low`` to ``high``. Messages print ``note`` after the range."""
    return Holds(lambda value: low <= value <= high, f"{low:g} to {high:g}{note}")


AT_LEAST_ONE = at_least(1)
NOT_NEGATIVE = at_least(0)
ABOVE_ZERO = Holds(lambda value: value > 0, "a number above 0")

#: seed of a run, or of random draws for one data set
Seed = Annotated[int, AtMost(2**63 - 1)]
#: rounds, epochs, iterations, halvings: larger numbers would take forever
UpToMillion = Annotated[int, AtMost(10**6)]
StepsOrNone = Annotated[UpToMillion, NOT_NEGATIVE]
Steps = Annotated[UpToMillion, AT_LEAST_ONE]
#: clients, shards, clusters
Parties = Steps
#: numbers of examples, points or texts, in a batch or in total
ItemCount = Annotated[int, AtMost(10**8)]
ItemsOrNone = Annotated[ItemCount, NOT_NEGATIVE]
Items = Annotated[ItemCount, AT_LEAST_ONE]
Several = Annotated[ItemCount, at_least(2)]
#: maximum number of examples to keep of a data set; at least 10
MaxExamples = Annotated[ItemCount, at_least(10)]
#: tokens of a text, including [CLS] and [SEP]
Tokens = Annotated[int, between(8, 512)]
#: units or channels of one layer, words of a vocabulary
Width = Annotated[int, AtMost(10**7)]
Channels = Annotated[Width, AT_LEAST_ONE]
Units = Annotated[Width, ABOVE_ZERO]
#: layers, blocks of a stage, attention heads
Depth = Annotated[int, AtMost(1000)]
#: pixels along one side, kernels, channels of an image
ImageSide = Annotated[int, AtMost(4096)]
#: coordinates, means and standard deviations of samples: their squares are finite in float32
Spread = Annotated[float, AtMost(1e15)]
Deviation = Annotated[Spread, NOT_NEGATIVE]
#: rates and scales
Positive = Annotated[float, ABOVE_ZERO]
NotNegative = Annotated[float, NOT_NEGATIVE]
Temperature = Annotated[float, Holds(lambda value: value > 0, "a number above 0 (1 gives standard training)")]
#: shares: in (0, 1), and in [0, 1)
Fraction = Annotated[float, Holds(lambda value: 0 < value < 1, "a number between 0 and 1, both excluded")]
FractionOrNone = Annotated[float, Holds(lambda value: 0 <= value < 1, "a number in [0, 1)")]
#: shares that may be 1: in (0, 1], and in [0, 1]
Proportion = Annotated[float, Holds(lambda value: 0 < value <= 1, "a number in (0, 1]")]
ProportionOrNone = Annotated[float, Holds(lambda value: 0 <= value <= 1, "a number in [0, 1]")]
#: settings of a model that a method names by its file
NamedModel = Annotated[Config, Holds(lambda model: {"kind", "name"} <= model.keys(), "a model with kind and name")]


def require_sgd_momentum(optimizer: str, momentum: float) -> None:
    """Check that ``momentum`` is 0 if ``optimizer`` is not SGD. Call this function in a ``__post_init__``."""
    require(optimizer == "sgd" or not momentum, "momentum", f"expected 0 unless optimizer=sgd, got {momentum}")
