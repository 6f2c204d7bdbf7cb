"""Formats of tables, claims, comparisons and runs: terminal, Markdown, LaTeX and CSV; names and numbers as text."""
