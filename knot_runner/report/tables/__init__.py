"""Tables of our numbers compared with the paper's, with footnotes."""
