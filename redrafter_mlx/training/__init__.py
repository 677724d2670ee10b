"""Trains a drafter on what its target answers and reads."""
