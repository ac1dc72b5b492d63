"""Inside a real training: what it takes step by step, whether it leaks, and an estimate of it before the first step."""
