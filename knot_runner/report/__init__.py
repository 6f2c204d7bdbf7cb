"""Tables and figures, made only from the records in run folders.

This package trains nothing and imports neither torch nor the methods.

- ``run_folders`` reads the run folders and checks their records.
- ``run_rows`` and ``frame`` return runs as pandas frames.
- ``paper_tables`` returns the numbers that the papers print.
- ``tables`` puts the results of runs next to the papers' numbers. ``render`` prints these tables.
- ``figures`` draws figures.
"""
