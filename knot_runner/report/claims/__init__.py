"""Statistical tests of a paper's claims: pairing of runs, estimation of effects, and verdicts."""
