"""Estimates and comparisons as neutral tables; ``formats`` draws them, one file per output format."""
