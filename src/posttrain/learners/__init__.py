"""What trains: one learner per file, found by its name."""
