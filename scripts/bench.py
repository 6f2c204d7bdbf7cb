"""Measurements behind the choices of this project; one subcommand each.

python scripts/bench.py sinkhorn --problems 4096 --repeats 5
python scripts/bench.py pipeline --repeats 3
python scripts/bench.py federation --workload W1 W2 --rounds 3 --repeats 3 --engines plain good lean
python scripts/bench.py fedwad --workload W1 W2 --repeats 3
python scripts/bench.py sweep --repeats 3 task.source=local task.missing=skip
python scripts/bench.py clients --folder DIR --methods fedavg scaffold fedper
python scripts/bench.py gpu --out gpu.md
"""

from __future__ import annotations

import argparse
import importlib
import sys

#: subcommand -> module with ``arguments(parser)`` and ``main(options)``
BENCHES = {
    "sinkhorn": "bench_sinkhorn",
    "pipeline": "bench_pipeline",
    "federation": "bench_federation",
    "fedwad": "bench_fedwad",
    "sweep": "bench_sweep",
    "clients": "bench_clients",
    "gpu": "bench_gpu",
}


def main(words: list[str]) -> None:
    """Run the benchmark that the command line ``words`` ask for."""
    options = parsed(words)
    importlib.import_module(BENCHES[options.bench]).main(options)


def parsed(words: list[str]) -> argparse.Namespace:
    """The options; ``bench`` is the subcommand. Wrong ones end with argparse's message."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="bench", required=True)
    # only the one asked for is imported: what the others import would count as memory in the processes it starts
    for name in [word for word in words[:1] if word in BENCHES] or BENCHES:
        module = importlib.import_module(BENCHES[name])
        module.arguments(commands.add_parser(name, help=module.__doc__.splitlines()[0], description=module.__doc__))
    return parser.parse_args(words)


if __name__ == "__main__":
    main(sys.argv[1:])
