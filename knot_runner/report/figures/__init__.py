"""Figures. Each figure is drawn from run folders and written as a PNG file."""
