"""Every figure; each reads run folders and writes one PNG."""
