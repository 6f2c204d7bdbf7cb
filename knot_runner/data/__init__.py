"""Tasks: labeled texts and images from files, the hub, or embedded; splits, and partitions over clients."""
