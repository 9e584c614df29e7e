"""How weights reach an engine: one way per file, found by its name."""
