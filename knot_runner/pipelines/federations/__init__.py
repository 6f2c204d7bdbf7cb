"""From a task's examples in the store to a federation of parties: of texts, of images.

Open ``parties.py`` first: the data sets are the parties, by their roles.
"""
