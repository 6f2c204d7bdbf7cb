"""What has to hold on a device before its times mean anything: checks of the stacked engine, each a few seconds.

A check returns what it measured, in words; it raises AssertionError where something does not hold, and :class:`Absent`
where the device has no such thing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch import Tensor

from knot_runner.config.settings.networks import CnnSettings, ConvSettings, MlpSettings, ResnetSettings
from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe, Trained
from knot_runner.engine.federated.loop import Loop
from knot_runner.engine.federated.stacked.engine import Stacked
from knot_runner.engine.federated.stacked.program import Program
from knot_runner.engine.objectives import CrossEntropy, Objective, cross_entropy
from knot_runner.models.network import Network

CLASSES, IMAGES, SIZES = 5, 96, (40, 23, 16, 5, 1, 40, 31, 8)
NETWORKS = {
    "MLP": Network(MlpSettings("mlp", "mlp", [32, 16], "logits"), (1, 8, 8), CLASSES),
    "CNN": Network(CnnSettings("cnn", "cnn", [ConvSettings(4, 3, 1), ConvSettings(6, 3, 1)], [12], "logits"),
                   (3, 8, 8), CLASSES),
    "ResNet": Network(ResnetSettings("resnet", "resnet", [1, 1], 8, "cifar", "group", 4), (3, 8, 8), CLASSES),
}  # fmt: skip
PLAIN = Recipe(phases=(Phase(2),), batch_size=8, drop_last=False, lr=0.05)
#: How far apart two engines' weights may be, relative to the largest: float64, and float32 after these few steps.
FLOAT64_BAND, FLOAT32_BAND = 1e-10, 1e-5
#: bfloat16 rounds products: how far updates deviate from float32, relative to how far the loop's do under autocast, is
#: at most this and at least its inverse. A fixed bound would depend on the device.
ROUNDING_RATIO = 2.0


class Absent(Exception):
    """This device has no such thing."""


def stacked_equals_loop(device: torch.device) -> str:
    """Weights of one cohort by the stacked engine and by the loop, in float64: every model, several recipes."""
    recipes = {
        "plain": PLAIN,
        "momentum": dataclasses.replace(PLAIN, momentum=0.9, weight_decay=0.01),
        "proximal": dataclasses.replace(PLAIN, proximal=0.3, augment="crop_flip"),
    }
    worst = 0.0
    for name, network in NETWORKS.items():
        for recipe in recipes.values():
            cohort = _cohort(network, torch.float64, recipe, temperature=0.5)
            wanted = Loop(network, *_data(network, device), device, torch.float64).train(cohort)
            found = _trained(network, device, cohort, torch.float64)
            worst = max(worst, _apart(found, wanted))
            _hold(worst <= FLOAT64_BAND, f"{name}: weights are {worst:.1e} apart")
    return f"{len(NETWORKS)} models x {len(recipes)} recipes, float64: at most {worst:.1e} apart"


def the_same_twice(device: torch.device) -> str:
    """The same bits again; and at a fixed width in another order of clients."""
    network = NETWORKS["CNN"]
    cohort = _cohort(network, torch.float32, PLAIN)
    first, again = (_trained(network, device, cohort, torch.float32, stack=4) for _ in range(2))
    _hold(_apart(first, again) == 0, "the same cohort gave other bits the second time")
    turned = _trained(network, device, cohort[::-1], torch.float32, stack=4)[::-1]
    _hold(_apart(first, turned) == 0, "clients' bits depend on their neighbors at a fixed width")
    return "the same bits twice, and in another order of clients (stack=4)"


def cuda_graphs(device: torch.device) -> str:
    """Steps are captured, and replays in later rounds give what steps outside of a graph do."""
    network = NETWORKS["CNN"]
    if device.type != "cuda":
        raise Absent("a CPU has no CUDA graphs")
    cohort = _cohort(network, torch.float32, PLAIN)
    engine = _engine(network, device, torch.float32)
    rounds = [engine.train(cohort) for _ in range(2)]
    graphs = sum(len(program.graphs) for program in engine.programs.values())
    engine.close()
    _hold(graphs > 0, "no graph was captured")
    _hold(_apart(*rounds) == 0, "a replay gave other bits than the round that captured it")
    with mock.patch.object(Program, "_advance", lambda self, k, trains: self.step(k, trains)):
        eager = _trained(network, device, cohort, torch.float32)
    worst = _apart(rounds[1], eager)
    _hold(worst <= FLOAT32_BAND, f"replays are {worst:.1e} from steps outside of a graph")
    return f"{graphs} graphs; {worst:.1e} from steps outside of them"


def bf16(device: torch.device) -> str:
    """Training in bfloat16 deviates from float32 as the loop under autocast does."""
    network = NETWORKS["CNN"]
    cohort = _cohort(network, torch.float32, PLAIN)
    loop = Loop(network, *_data(network, device), device, torch.float32)
    wanted = loop.train(cohort)
    with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
        looped = loop.train(cohort)
    apart = _updates_apart(_trained(network, device, cohort, torch.float32, precision="bf16"), wanted, cohort)
    usual = _updates_apart(looped, wanted, cohort)
    measured = f"updates deviate by {apart:.1e} from float32; the loop's under autocast by {usual:.1e}"
    _hold(1 / ROUNDING_RATIO <= apart / usual <= ROUNDING_RATIO, measured)
    return measured


def tf32(device: torch.device) -> str:
    """Training in TF32, whose products have three more bits than bfloat16's, deviates from float32, and by at most half
    as much as bfloat16. The loop is no reference: cuDNN computes its small layers in float32."""
    network = NETWORKS["CNN"]
    if device.type != "cuda":
        raise Absent("a CPU has no TF32")
    cohort = _cohort(network, torch.float32, PLAIN)
    wanted = _trained(network, device, cohort, torch.float32)
    apart = _updates_apart(_trained(network, device, cohort, torch.float32, precision="tf32"), wanted, cohort)
    coarse = _updates_apart(_trained(network, device, cohort, torch.float32, precision="bf16"), wanted, cohort)
    measured = f"updates deviate by {apart:.1e} from float32; in bfloat16 by {coarse:.1e}"
    _hold(0 < apart <= coarse / 2, measured)
    return measured


def out_of_memory(device: torch.device) -> str:
    """A stack that does not fit is halved until it does, with the same weights; on CUDA by real exhaustion."""
    network = NETWORKS["MLP"] if device.type != "cuda" else _wide()
    cohort = _cohort(network, torch.float64, PLAIN)
    said = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    wanted = _trained(network, device, cohort, torch.float64)
    engine = _engine(network, device, torch.float64, note=said.append)
    with _scarce(device, len(cohort) // 2):
        found = engine.train(cohort)
    engine.close()
    _hold(any("out of GPU memory" in line for line in said), f"memory did not run out, or it was not said: {said}")
    worst = _apart(found, wanted)
    _hold(worst <= FLOAT64_BAND, f"weights are {worst:.1e} from those of the whole stack")
    return f"said {len(said)} times; {worst:.1e} from the whole stack"


def several_devices(device: torch.device) -> str:
    """Every device trains the same cohort to the same bits."""
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if count < 2:
        raise Absent(f"there is one {device.type} device")
    network = NETWORKS["CNN"]
    cohort = _cohort(network, torch.float32, PLAIN)
    found = [_trained(network, torch.device("cuda", place), cohort, torch.float32) for place in range(count)]
    worst = max(_apart(found[0], other) for other in found[1:])
    alike = len({torch.cuda.get_device_name(place) for place in range(count)}) == 1
    _hold(worst <= (0 if alike else FLOAT32_BAND), f"devices are {worst:.1e} apart")
    return f"{count} devices, {worst:.1e} apart"


#: name -> check(device)
CHECKS: dict[str, Callable[[torch.device], str]] = {
    "stacked equals the loop": stacked_equals_loop,
    "the same twice": the_same_twice,
    "CUDA graphs": cuda_graphs,
    "bf16": bf16,
    "tf32": tf32,
    "out of memory": out_of_memory,
    "several devices": several_devices,
}


# ------------------------------------------------------------------------------------------------------------ helpers


def _hold(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


def _updates_apart(found: list[Trained], wanted: list[Trained], cohort: list[LocalTraining]) -> float:
    """The largest deviation of a client's update, relative to the update's norm."""
    ratios = []
    for a, b, request in zip(found, wanted, cohort, strict=True):
        ratios.append(float((a.weights - b.weights).norm() / (b.weights - request.start.weights).norm()))
    return max(ratios)


def _apart(found: list[Trained], wanted: list[Trained]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float((a.weights - b.weights).abs().max() / b.weights.abs().max()) for a, b in pairs)


def _data(network: Network, device: torch.device) -> tuple[ImageData, ImageData]:
    draws = torch.Generator().manual_seed(0)
    channels = network.inputs[0]
    pixels = torch.randint(256, (IMAGES, *network.inputs), generator=draws, dtype=torch.uint8)
    labels = torch.randint(CLASSES, (IMAGES,), generator=draws)
    data = ImageData(pixels, labels, torch.full((channels,), 0.5), torch.full((channels,), 0.25)).to(device)
    return data, data


def _cohort(
    network: Network, dtype: torch.dtype, recipe: Recipe, temperature: float = 1.0, seed: int = 3
) -> list[LocalTraining]:
    """Clients of :data:`SIZES` images from one start."""
    draws = torch.Generator().manual_seed(seed)
    weights, buffers = flat.initial(network, seed)
    start = ClientModel(weights.to(dtype), buffers.to(dtype))
    objective = Objective(cross_entropy, dataclasses.asdict(CrossEntropy(temperature=temperature)))
    rows = [torch.randperm(IMAGES, generator=draws)[:size] for size in SIZES]
    tests = torch.empty(0, dtype=torch.int64)
    return [
        LocalTraining(client, 1, seed, start, own, tests, recipe, None, objective) for client, own in enumerate(rows)
    ]


def _engine(network: Network, device: torch.device, dtype: torch.dtype, **options: object) -> Stacked:
    chosen = {"stack": 0, **options}
    return Stacked(network, *_data(network, device), device, dtype, **chosen)


def _trained(
    network: Network, device: torch.device, cohort: list[LocalTraining], dtype: torch.dtype, **options: object
) -> list[Trained]:
    engine = _engine(network, device, dtype, **options)
    try:
        return engine.train(cohort)
    finally:
        engine.close()


def _wide() -> Network:
    """64 MB in float64, so that a stack of eight takes gigabytes."""
    return Network(MlpSettings("mlp", "mlp", [4096, 1024], "logits"), (1, 32, 32), CLASSES)


@contextlib.contextmanager
def _scarce(device: torch.device, most: int) -> Iterator[None]:
    """Memory runs out with more than ``most`` clients: on CUDA this process may use three eighths of its peak so far;
    elsewhere steps that are too wide raise what CUDA does."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        allowed = torch.cuda.memory_reserved(device) + peak * 3 // 8
        torch.cuda.set_per_process_memory_fraction(min(allowed / total, 1.0), device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        return
    real = Program.step

    def step(program: Program, k: int, trains: str) -> Tensor | None:
        if k > most:
            raise torch.OutOfMemoryError("CUDA out of memory (pretended)")
        return real(program, k, trains)

    with mock.patch.object(Program, "step", step):
        yield
