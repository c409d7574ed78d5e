"""Ways to the sum of clipped gradients: the loop, the vectorized engine and book-keeping."""
