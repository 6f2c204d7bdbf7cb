"""Training and inference: requests, the loop that executes them, artifacts and commits."""
