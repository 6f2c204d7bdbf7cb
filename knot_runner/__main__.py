"""``python -m knot_runner``: the same as the ``knot-runner`` command."""

from knot_runner.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
