"""Tables and figures from run folders only. This package trains nothing and imports neither torch nor the methods.

``run_folders`` reads the folders and checks the records. ``run_rows`` and ``frame`` return the runs as pandas frames,
and ``paper_tables`` returns the papers' numbers. ``tables`` combines our results and the papers' numbers as plain data,
``render`` formats these tables, and ``figures`` maps names to figures.
"""
