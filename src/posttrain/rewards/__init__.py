"""One reward per file, found by its name."""
