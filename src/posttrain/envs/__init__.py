"""One environment per file, found by its name."""
