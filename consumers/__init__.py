"""Worker processes: entry points that consume event logs."""
