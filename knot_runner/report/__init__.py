"""Tables and figures, drawn from run folders alone: nothing here trains, and nothing imports torch or the methods.

``run_folders`` reads the folders, ``frame`` has them as pandas frames, ``paper_tables`` the paper's numbers; ``tables``
sets the two beside each other as plain data; ``render`` writes that down; ``figures`` holds every picture by name.
"""
