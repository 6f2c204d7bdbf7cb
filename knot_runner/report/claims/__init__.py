"""Tests of a paper's claims: pairs of runs, evidence and verdicts."""
