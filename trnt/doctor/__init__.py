"""Is this machine ready? A table of checks; whatever needs torch runs in a process of its own, with a time limit."""
