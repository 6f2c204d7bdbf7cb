"""Whether a paper's claims hold: pairs of runs, evidence, verdicts."""
