"""What users put on a base model of transformers that has no class for image classification: a linear layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["LinearClassifier"]


class LinearClassifier(nn.Module):
    """The base model, under the name that its type has, and ``classifier`` on its ``pooler_output``.

    Called as transformers' ``ForImageClassification`` classes are: with ``labels`` the loss is theirs, and
    ``num_items_in_batch`` among the keywords divides its sum.
    """

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base_config = base.config  # as ``config`` it would make PEFT expect a model of transformers
        self.base_name = base.config.model_type
        self.add_module(self.base_name, base)
        self.classifier = nn.Linear(base.config.hidden_size, base.config.num_labels)

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        """Loss (where labels came) and logits."""
        from transformers.loss.loss_utils import LOSS_MAPPING
        from transformers.modeling_outputs import ImageClassifierOutput

        outputs = getattr(self, self.base_name)(pixel_values)
        pooled_output = outputs.pooler_output
        logits = self.classifier(pooled_output)
        loss = None
        if labels is not None:
            loss_function: Any = LOSS_MAPPING["ForImageClassification"]
            loss = loss_function(labels, logits, self.base_config, **kwargs)
        return ImageClassifierOutput(loss=loss, logits=logits)

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        """The base model's own switch."""
        getattr(self, self.base_name).gradient_checkpointing_enable(**kwargs)
