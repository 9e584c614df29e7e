"""Records: what a run leaves on disk, readable by any tool and safe against a kill at any moment."""
