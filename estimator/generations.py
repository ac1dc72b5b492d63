"""What versions of PyTorch changed in the memory of a training step: one row of ``CHANGES`` each, with its source.

The rest of the estimator plays torch 2.14 and asks :meth:`Torch.has` where an older version did something else. What
a version did not change is the same; what is not known of one is in :func:`unknown_of`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from functools import cache

from .errors import InvalidRequest

__all__ = ["CHANGES", "NEWEST", "OLDEST", "Change", "Torch", "unknown_of", "wheels_of"]

OLDEST, NEWEST = (1, 10), (2, 14)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """``since`` is the first version that does as torch 2.14 does."""

    since: tuple[int, int]
    source: str


CHANGES: Mapping[str, Change] = {
    # before: softmax and log_softmax save their input too
    "softmax_keeps_its_result_only": Change((1, 11), "pytorch #65242"),
    # before: every kernel of the library is in the context from its start
    "lazy_modules": Change((1, 13), "pytorch #86509"),
    # before: the library's own memory, outside the allocator
    "cublas_workspace_is_allocated": Change((1, 13), "pytorch #83461"),
    # before: 4 MiB on every generation, for the default's sizes are read without their counts
    "cublas_workspace_by_generation": Change((2, 0), "pytorch #91564, #95668"),
    # before: no scaled_dot_product_attention
    "sdpa": Change((2, 0), "release notes of torch 2.0"),
    # before: zero_grad() fills with zeros
    "zero_grad_sets_none": Change((2, 0), "pytorch #92731"),
    # before: a loop over the parameters
    "foreach_by_default": Change((2, 0), "pytorch #92306"),
    # before: the foreach updates make more lists; AdamW and Adam a second one, for eps is added out of place
    "foreach_makes_few_lists": Change((2, 1), "pytorch #104780, #104898 and their like for the other optimizers"),
    # before: the efficient kernel takes no mask
    "efficient_takes_masks": Change((2, 1), "sdp_utils.cpp, use_mem_efficient_attention"),
    # before: the allocator does not know the option
    "expandable_segments": Change((2, 1), "pytorch #96995; torch 2.0.1 refuses it, DeepSeek-VL2 #103"),
    # before: FlashAttention-1 on packed tokens
    "flash_attention_2": Change((2, 2), "pytorch #105602"),
    # before: autocast refuses bf16 on GPUs without it
    "emulates_bf16": Change((2, 3), "pytorch #115924"),
    # before: 16-bit stays 16-bit in the math kernel, and its softmax is the plain one
    "math_attention_in_fp32": Change((2, 5), "pytorch #128922, #131060"),
    # before: the random state of fused attention is on the host
    "attention_state_on_gpu": Change((2, 7), "flash_attn/flash_api.cpp and attention.cu"),
    # before: layer norm's backward borrows nothing
    "layer_norm_partial_sums": Change((2, 8), "pytorch #150773"),
    # before: cuBLASLt borrows its MiB for one call
    "lt_workspace_is_kept": Change((2, 9), "pytorch #156495"),
    # before: cuBLASLt has a workspace of its own
    "one_workspace_of_cublas_and_lt": Change((2, 11), "pytorch #168175"),
    # before: flash comes first on Hopper and Blackwell too (but for 2.9)
    "prefers_cudnn_attention": Change((2, 11), "check_prefer_cudnn_attention, with the wheels' cuDNN"),
    # before: 8.125 MiB on compute capability 10 and 12, and on 11 until 2.14
    "large_workspace_on_blackwell": Change((2, 12), "pytorch #175344"),
    "large_workspace_on_thor": Change((2, 14), "pytorch #189312"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Torch:
    """A version of PyTorch, as far as it matters here: the major and the minor number."""

    version: tuple[int, int] = NEWEST

    @classmethod
    def parse(cls, text: str) -> Torch:
        """``2.1``, also ``2.1.0+cu118``; raises InvalidRequest for what is no version, or none that is known."""
        match = re.match(r"(\d+)\.(\d+)(?![\d])", text, re.ASCII)
        if match is None:
            raise InvalidRequest(f"torch {text!r} is no version; write it as {_label(NEWEST)}")
        version = int(match[1]), int(match[2])
        last_of_one = (1, 13)
        if not OLDEST <= version <= NEWEST or last_of_one < version < (2, 0):
            raise InvalidRequest(
                f"torch {_label(version)} is not known; {_label(OLDEST)} to {_label(last_of_one)} and "
                f"2.0 to {_label(NEWEST)} are"
            )
        return _of(version)

    @classmethod
    def nearest(cls, text: str) -> Torch:
        """Of an installed version: itself, or the newest that is known where it is later."""
        match = re.match(r"(\d+)\.(\d+)(?![\d])", text)
        later = match is not None and (int(match[1]), int(match[2])) > NEWEST
        return _of(NEWEST) if later else cls.parse(text)

    @property
    def label(self) -> str:
        """``2.14``."""
        return _label(self.version)

    @property
    def is_newest(self) -> bool:
        """Whether it is the version that every reference was made with."""
        return self.version == NEWEST

    def has(self, change: str) -> bool:
        """Whether it does as torch 2.14 does."""
        return self.version >= CHANGES[change].since


@cache
def _of(version: tuple[int, int]) -> Torch:
    return Torch(version)


def _label(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


#: The first version whose wheels have kernels for a generation, by the major number of its compute capability: CUDA
#: 11.8 came with torch 2.0, CUDA 12.8 with torch 2.7 (their release notes).
_FIRST_WHEELS: Mapping[int, tuple[int, int]] = {9: (2, 0), 10: (2, 7), 12: (2, 7)}


def wheels_of(torch: Torch, capability: tuple[int, int]) -> str | None:
    """Why PyTorch's own wheels of this version do not run on a GPU; None where they do."""
    sm = "{}.{}".format(*capability)
    if torch.is_newest and capability < (7, 5):
        return f"torch {torch.label}'s CUDA 13 builds do not run on compute capability {sm}"
    first = _FIRST_WHEELS.get(capability[0], OLDEST)
    if torch.version < first:
        return (
            f"torch {torch.label}'s wheels have no kernels for compute capability {sm}; {_label(first)} is the first "
            "version with them"
        )
    return None


def unknown_of(torch: Torch) -> tuple[str, ...]:
    """What an estimate for another version than the newest leaves open."""
    if torch.is_newest:
        return ()
    builds = (
        "whether a build for CUDA 12.2 or later leaves cuBLAS' workspaces (8.125 MiB, on Hopper 32 MiB, twice) to the "
        "library, outside the allocator (pytorch #113994, #123114)",
    )
    return (
        *(builds if (2, 4) <= torch.version <= (2, 8) else ()),
        f"what torch {torch.label} does otherwise than torch {_label(NEWEST)} beyond {_count(torch)} known changes: "
        "no reference was made with it; models and loops are those of today's libraries",
    )


def _count(torch: Torch) -> int:
    return sum(not torch.has(name) for name in CHANGES)
