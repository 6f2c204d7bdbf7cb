"""Logit chilling (FLex&Chill, arXiv 2401.09986): its probe, figures and tables. The method is part of the core."""
