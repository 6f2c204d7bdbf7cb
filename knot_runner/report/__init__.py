"""Tables and figures, drawn from run folders alone: nothing here trains, and nothing imports torch or the methods.

``run_folders`` reads the folders and checks the records, ``run_rows`` and ``frame`` have the runs as pandas frames,
``paper_tables`` has the paper's numbers; ``tables`` sets the two beside each other as plain data; ``render`` writes
that down; ``figures`` holds every picture by name.
"""
