"""One algorithm per file, found by its name; each reads like its paper."""
