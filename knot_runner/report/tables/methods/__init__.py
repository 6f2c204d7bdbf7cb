"""Tables of methods x data sets, with baselines and gains, and of local models."""
