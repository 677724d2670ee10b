"""Weights of other programs, read safely and written in the layouts used here."""
