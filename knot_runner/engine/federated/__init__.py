"""Local training of a cohort of clients: one contract, several engines (loop, lean, stacked)."""
