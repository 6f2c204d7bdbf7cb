"""Numbers of settings by what they count, each with the largest value that can be meant.

What fits the machine's memory is another question, answered where sizes are known (:mod:`knot_runner.util.memory`); a
setting that none of these describes is bounded by ``strict.MAX_COUNT`` or ``strict.MAX_NUMBER``.
"""

from __future__ import annotations

from typing import Annotated

from knot_runner.config.strict import AtMost

#: of a run or of one data set's draws
Seed = Annotated[int, AtMost(2**63 - 1)]
#: rounds, epochs, iterations, halvings: more would not end
Steps = Annotated[int, AtMost(10**6)]
#: clients, shards, clusters
Parties = Annotated[int, AtMost(10**6)]
#: examples, points, texts; of a batch or of all
Items = Annotated[int, AtMost(10**8)]
#: units or channels of one layer, words of a vocabulary
Width = Annotated[int, AtMost(10**7)]
#: layers, blocks of a stage, attention heads
Depth = Annotated[int, AtMost(1000)]
#: pixels along one side, kernels, channels of an image
ImageSide = Annotated[int, AtMost(4096)]
#: coordinates, means and standard deviations of samples: their squares are finite in float32
Spread = Annotated[float, AtMost(1e15)]
