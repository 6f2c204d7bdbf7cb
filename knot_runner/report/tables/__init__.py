"""Tables: ours beside the paper's, and the lines under them."""
