"""The invariants, proved on the user's own model before the first step."""
