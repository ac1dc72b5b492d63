"""The model catalogue: one JSON file per library."""
