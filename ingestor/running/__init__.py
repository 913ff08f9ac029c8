"""What one run opens, plans and wires; `pipeline` puts it together."""
