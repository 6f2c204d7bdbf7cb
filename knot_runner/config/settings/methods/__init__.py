"""Settings of the package's methods."""
