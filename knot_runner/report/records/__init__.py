"""Terminal summary of each kind of run."""
