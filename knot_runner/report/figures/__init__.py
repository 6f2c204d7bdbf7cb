"""Figures, which are drawn from run folders and written as image files."""
