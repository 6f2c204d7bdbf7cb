"""Tables of our numbers next to the papers' printed numbers, with footnotes."""
