"""KNOT (arXiv 2110.02432): its figures, its Table 1 and its bound. The method is part of the core."""
