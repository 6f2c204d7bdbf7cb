"""General utilities: errors, files and locks, memory, processes, standard streams."""
