"""Words and arithmetic: events, fences, leases, rings, protocols. Standard library only, and nothing here blocks."""
