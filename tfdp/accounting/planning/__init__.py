"""What a privacy budget buys: noise, steps and batch sizes, and what is left of it."""
