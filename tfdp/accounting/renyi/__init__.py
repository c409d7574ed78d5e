"""Renyi divergences of the mechanisms, and what follows from them about epsilon and delta."""
