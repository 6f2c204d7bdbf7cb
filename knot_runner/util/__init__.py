"""What any program needs: errors, files and locks, memory, processes, standard streams."""
