"""Tests of a paper's claims: pairs of runs, evidence, verdicts."""
