"""The verbs of the command line. Each verb is a function that returns the exit code."""
