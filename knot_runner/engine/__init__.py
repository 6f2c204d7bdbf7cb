"""Training and inference: requests, artifacts, commits, and the code that executes requests."""
