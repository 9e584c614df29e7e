"""Models: loading, attention, heads, adapters, threads and the offline toy."""
