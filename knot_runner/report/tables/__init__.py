"""Tables of our numbers beside the paper's, with footnotes."""
