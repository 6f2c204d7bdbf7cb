"""Logit chilling (FLex&Chill, arXiv 2401.09986): its probe, figures and tables. The method itself is of the core."""
