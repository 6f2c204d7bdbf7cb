"""Finished runs in one archive, for somebody else to run again: what is packed, how it is read, what is compared."""
