"""One policy with one environment: turns, groups, and their scores."""
