"""Models computed by other libraries than torch: exported once, kept in a folder, loaded from there."""
