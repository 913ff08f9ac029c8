"""A module for each command other than `run`; each gives lines for `cli` to print."""
