"""Tables of methods x data sets, what they start from and gain, and of local models."""
