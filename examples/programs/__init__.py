"""Programs to copy and change."""
