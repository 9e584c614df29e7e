"""What generates: one engine per file, found by its name."""
