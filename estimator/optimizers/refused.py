"""Names that people ask for and that get no number, each with its reason."""

from __future__ import annotations

from .row import Optimizer

__all__ = ["ROWS"]

_TARGETS = (
    "it needs optim_target_modules, the layers whose gradients are projected, and Trainer has no default for them"
)
_IN_BACKWARD = "it updates each parameter and drops its gradient inside the backward pass, which is not modelled"
_REMOVED = "transformers 5 no longer has it"
_MATRICES = "torch.optim.Muon takes matrices only, and what updates the rest of the model is the user's choice"

_REASONS = {
    "galore_adamw": f"{_TARGETS}; use adamw_torch",
    "galore_adamw_8bit": f"{_TARGETS}; use adamw_8bit",
    "galore_adafactor": f"{_TARGETS}; use adafactor",
    "galore_adamw_layerwise": f"{_TARGETS}; use adamw_torch",
    "galore_adamw_8bit_layerwise": f"{_TARGETS}; use adamw_8bit",
    "galore_adafactor_layerwise": f"{_TARGETS}; use adafactor",
    "apollo_adamw": f"{_TARGETS}; use adamw_torch",
    "apollo_adamw_layerwise": f"{_TARGETS}; use adamw_torch",
    "lomo": f"{_IN_BACKWARD}; use sgd",
    "adalomo": f"{_IN_BACKWARD}; use adafactor",
    "muon": f"{_MATRICES}; use adamw_torch",
    "adamw_hf": f"{_REMOVED}; use adamw_torch",
    "adamw_apex_fused": f"{_REMOVED}; use adamw_torch_fused",
    "adamw_torch_xla": "it runs on TPUs; use adamw_torch_fused",
    "adamw_torch_npu_fused": "it runs on Ascend NPUs; use adamw_torch_fused",
}

ROWS = {name: Optimizer(source="", refused=reason) for name, reason in _REASONS.items()}
