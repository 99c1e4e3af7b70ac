"""What really runs on each side."""
