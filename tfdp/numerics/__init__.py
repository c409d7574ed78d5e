"""Sums of squares and their rounding, so that a bound on a norm holds in floating point, too."""
