"""Algorithms beside each other: their terms, their effect on stored tokens, and their pages."""
