"""Measurements: speeds, shapes and costs, side by side in one run."""
