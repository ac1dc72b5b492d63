"""Placeholder while the table is written."""
OPTIMIZERS = {"adamw_torch": None, "adamw_torch_fused": None, "sgd": None, "sgd-momentum": None, "sgd-nesterov": None, "adafactor": None}
