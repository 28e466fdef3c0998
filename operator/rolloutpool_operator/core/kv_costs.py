"""What a profile says of holding KV: when a session is better computed again, what CPU memory holds."""

from __future__ import annotations

from functools import lru_cache

from rolloutpool_api.planning import Role
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_operator.core.engine_args import transfers_kv
from rolloutpool_operator.core.merging import quantity
from rolloutpool_operator.core.observed import Observed, ProfileFacts
from rolloutpool_operator.core.translate import read_profile
from rolloutpool_sim.profile import PerformanceProfile, ProfileError, break_even_seconds, load_builtin


def park_seconds(observed: Observed, spec: RolloutPoolSpec) -> float:
    """Idle time after which a session's blocks cost more than computing them again; 0 if unknown.

    It follows from the profile of the engines that sessions live on, as applied.
    """
    plan, profile = observed.status.plan, _profile(spec, observed.profile)
    homes = [group for group in plan.groups if group.role is not Role.PREFILL] if plan is not None else []
    if not homes or profile is None:
        return 0.0
    try:
        return break_even_seconds(profile.at(homes[0].tensor_parallel, homes[0].pipeline_parallel))
    except ProfileError:
        return 0.0


def offload_blocks(observed: Observed, spec: RolloutPoolSpec, role: Role) -> int:
    """KV blocks that an engine's CPU memory holds; 0 where there is none, or the profile does not tell."""
    offload = spec.engine.kv_offload
    if offload is None or transfers_kv(role):
        return 0
    profile = _profile(spec, observed.profile)
    size = quantity(offload.size)
    if profile is None or not profile.kv_bytes_per_token or not size:
        return 0
    return int(size) // (profile.kv_bytes_per_token * spec.engine.block_size)


def _profile(spec: RolloutPoolSpec, facts: ProfileFacts) -> PerformanceProfile | None:
    """Built-in profiles are files: they are read once."""
    builtin = spec.planning.profile.builtin
    try:
        return _builtin(builtin) if builtin else read_profile(spec, facts)
    except ProfileError:
        return None


_builtin = lru_cache(maxsize=16)(load_builtin)
