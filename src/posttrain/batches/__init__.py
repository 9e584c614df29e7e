"""Groups to samples to microbatches, with weights over the whole step."""
