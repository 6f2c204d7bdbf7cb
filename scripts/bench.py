"""Measurements behind the choices of this project; one subcommand each.

python scripts/bench.py sinkhorn --problems 4096 --repeats 5
python scripts/bench.py pipeline --repeats 3
"""

from __future__ import annotations

import argparse

import bench_pipeline
import bench_sinkhorn

#: subcommand -> module with ``arguments(parser)`` and ``main(options)``
BENCHES = {"sinkhorn": bench_sinkhorn, "pipeline": bench_pipeline}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="bench", required=True)
    for name, module in BENCHES.items():
        module.arguments(commands.add_parser(name, help=module.__doc__.splitlines()[0], description=module.__doc__))
    options = parser.parse_args()
    BENCHES[options.bench].main(options)


if __name__ == "__main__":
    main()
