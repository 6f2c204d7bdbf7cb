"""What records must hold to be believed, and each kind of run in the terminal."""
