"""Trainings and inferences: requests, the loop that carries them out, artifacts and commits."""
