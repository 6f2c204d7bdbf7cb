"""Tasks: labeled texts and images from files, the Hugging Face hub or built-in data, with splits and partitions."""
