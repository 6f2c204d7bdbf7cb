"""KNOT (arXiv 2110.02432): figures, Table 1 and generalization bound. The method is part of the core."""
