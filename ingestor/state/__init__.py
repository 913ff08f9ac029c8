"""The state file: what is stored, what failed, and what the collection should hold."""
