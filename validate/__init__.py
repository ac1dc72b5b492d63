"""Runs or rehearses the real training step and compares it with the estimate; needs torch."""
