"""Formats tables, claims, comparisons and runs for terminal, Markdown, LaTeX and CSV; names and numbers as text."""
