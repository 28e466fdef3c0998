"""Weight synchronisation over the router: a listener of its own, a pause gate, and engines that lag behind.

What a call means is decided in `core.weight_calls` and `core.weights`; this package sends and listens. It
must not decide which weights are right, retry a weight update, or let a token out.
"""

from rolloutpool_router.weights.listener import serving_weights
from rolloutpool_router.weights.metrics import WeightsCollector
from rolloutpool_router.weights.pause import PauseGate
from rolloutpool_router.weights.sync import WeightSync
from rolloutpool_router.weights.token import TokenFile

__all__ = [
    "PauseGate",
    "TokenFile",
    "WeightSync",
    "WeightsCollector",
    "serving_weights",
]
