"""Tasks: labeled texts and images from files, the hub, or embedded sources, with their splits and client partitions."""
