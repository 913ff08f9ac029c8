"""The model: loaded, tuned, judged, and computed by one of several runtimes."""
