"""The engine model: vLLM V1's scheduler and paged KV cache, pure and on the caller's clock.

No I/O, no clock and no randomness here; and nothing that vLLM's scheduler does not know, such as classes or
quotas.
"""

from rolloutpool_sim.engine.config import EngineConfig, KvLoadFailurePolicy
from rolloutpool_sim.engine.engine import Engine
from rolloutpool_sim.engine.request import EngineRequest, FinishReason, Transfer
from rolloutpool_sim.engine.results import Counters, FinishedRequest, Load, NewToken, StepResult

__all__ = [
    "Counters",
    "Engine",
    "EngineConfig",
    "EngineRequest",
    "FinishReason",
    "FinishedRequest",
    "KvLoadFailurePolicy",
    "Load",
    "NewToken",
    "StepResult",
    "Transfer",
]
