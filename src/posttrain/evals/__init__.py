"""Evaluation: tasks sampled n times, judged, and reduced to numbers with protocol and interval."""
