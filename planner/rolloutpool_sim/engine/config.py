"""What fixes an engine's behaviour besides its speed: sizes and limits, named as vLLM's `serve` flags."""

from dataclasses import dataclass
from typing import Literal

KvLoadFailurePolicy = Literal["fail", "recompute"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Sizes of the KV cache and limits of the scheduler. Defaults are those of `vllm serve` on an 80 GB GPU.

    `num_blocks` counts vLLM's null block, as `--num-gpu-blocks-override` does: one block fewer can be used.
    `kv_lease_seconds` is how long a prefill-only request's blocks wait for the decode side (NIXL's
    `kv_lease_duration`), and `kv_load_failure` what happens to a request whose remote KV is gone
    (`kv_load_failure_policy`). Raises ValueError for sizes with which some request could never be served.
    """

    num_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    enable_prefix_caching: bool = True
    kv_lease_seconds: float = 30.0
    kv_load_failure: KvLoadFailurePolicy = "fail"

    def __post_init__(self) -> None:
        for name in ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.kv_lease_seconds <= 0:
            raise ValueError(f"kv_lease_seconds must be positive, not {self.kv_lease_seconds}")
        if self.max_model_len > self.capacity_tokens:
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit the KV cache: {self.num_blocks} blocks of"
                f" {self.block_size} tokens (one is reserved) hold {self.capacity_tokens} tokens;"
                " lower max_model_len or give more blocks"
            )

    @property
    def capacity_tokens(self) -> int:
        """Tokens of KV that the usable blocks hold."""
        return max(self.num_blocks - 1, 0) * self.block_size
