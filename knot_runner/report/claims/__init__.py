"""Statistical tests of the claims in papers: pairing of runs, estimation of effects, and verdicts."""
