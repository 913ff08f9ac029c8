"""How a run goes and went: counters, display, metrics, traces, report and page."""
