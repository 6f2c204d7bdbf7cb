"""Figures. Each one reads run folders and writes a PNG file."""
