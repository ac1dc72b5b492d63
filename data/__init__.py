"""Data rows that ship with vitmem; README.md says where each came from and how to make it again."""
