"""Where tasks come from, in which order they are issued, and how messages become tokens and back."""
