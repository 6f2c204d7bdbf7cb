"""How tables, claims, comparisons and runs are written: terminal, Markdown, LaTeX, CSV; names and numbers as text."""
