"""One file per verb; ``main`` loads only the one that is called."""
