"""Privacy losses of the mechanisms, rounded to a grid, and bounds of delta for their sums."""
