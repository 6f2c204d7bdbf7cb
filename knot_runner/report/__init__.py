"""Tables and figures from run folders only. This package trains nothing and imports neither torch nor the methods.

``run_folders`` reads the folders and checks the records. ``run_rows`` and ``frame`` return the runs as pandas frames,
and ``paper_tables`` the papers' numbers. ``tables`` combines both as plain data, ``render`` formats them, and
``figures`` holds every figure by name.
"""
