"""The step, station by station: online, offline, and what both share."""
