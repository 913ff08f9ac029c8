"""What a run is told: the settings, their defaults, and where each value came from."""
