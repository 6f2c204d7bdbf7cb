"""Output formats of tables, claims, comparisons and runs: terminal, Markdown, LaTeX and CSV."""
