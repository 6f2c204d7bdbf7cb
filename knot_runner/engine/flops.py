"""Count the floating-point operations (FLOPs) of a forward pass for one example."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from knot_runner.config.settings.networks import CustomSettings
from knot_runner.engine.federated.flat import layout_of
from knot_runner.engine.seeds import seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.models.network import Network, build_network

#: The number of examples in the counted forward pass. A custom model is checked with the same number.
EXAMPLES = 2
#: The CPU's attention operation, which torch's table of FLOP formulas lacks.
CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@dataclass(frozen=True)
class ExampleFlops:
    """The FLOPs of a forward pass for one example.

    Attributes:
        forward: The FLOPs of the whole network.
        head: The FLOPs of the last layer.
    """

    forward: int
    head: int


def example_flops(network: Network, length: int = 0) -> ExampleFlops | None:
    """Return the FLOPs of a forward pass for one image, or for one text of ``length`` tokens.

    Matrix products, convolutions and attention are counted by the formulas of ``torch.utils.flop_counter``, where a
    multiply-add counts as two operations. Other operations, such as normalization and activations, are not counted.

    The result is None if counting fails for a custom model, or if the model has none of the counted operations.
    """
    counted = _Counted()
    try:
        with counted:
            _read(network, _examples(network, length))
    except Exception:  # a custom model is the user's code, which may raise anything here, such as a compiler's error
        if isinstance(network.spec, CustomSettings):
            return None
        raise
    fields = layout_of(network)
    weights = [field.shape for field in fields.parameters if field.name.startswith(fields.head)]
    head = sum(2 * prod(shape) for shape in weights if len(shape) > 1)
    return ExampleFlops(counted.total // EXAMPLES, head) if counted.total else None


def _read(network: Network, examples: Tensors) -> None:
    """Run the network on the meta device, which computes only shapes and is fast. Custom models run on the CPU."""
    if isinstance(network.spec, CustomSettings):  # a custom model may hold other tensors than parameters and buffers
        with seeded(0, "unused"):
            build_network(network).eval()(**examples)
        return
    with torch.device("meta"):
        build_network(network).eval()(**{name: tensor.to("meta") for name, tensor in examples.items()})


def _examples(network: Network, length: int) -> Tensors:
    if not network.reads_texts:
        return {"x": torch.zeros(EXAMPLES, *network.inputs)}
    ids = torch.zeros(EXAMPLES, length, dtype=torch.int64)
    return {"ids": ids, "mask": torch.ones(EXAMPLES, length, dtype=torch.bool), "types": torch.zeros_like(ids)}


class _Counted(TorchDispatchMode):
    """Sums the FLOPs of all operations inside the ``with`` block.

    Torch's ``FlopCounterMode`` counts per module. To do so, it imports torch's compiler, which takes longer than a
    short run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise, torch imports its compiler to exclude this class

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func.overloadpacket)
        if func is CPU_ATTENTION:
            self.total += sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
        elif formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result
