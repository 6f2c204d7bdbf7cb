"""Training and inference: requests, the loop that executes requests, artifacts and commits."""
