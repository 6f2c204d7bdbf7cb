"""Figures of KNOT: teachers' bias, predictions, vectors, the generalisation bound."""
