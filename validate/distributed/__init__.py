"""Real engines on real processes: every rank trains on the CPU by the Trainer and follows its own storages."""
