"""What the admission loop says besides caps: mixture, throttling, and what does not work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType
from rolloutpool_api.moments import rfc3339, unix_seconds
from rolloutpool_api.snapshot import AdmissionSnapshot, SnapshotWeights
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus, ClassShare, MixtureStatus
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.conditions import condition
from rolloutpool_operator.core.throttling import throttled
from rolloutpool_router.core.control import Merged
from rolloutpool_router.core.mixture import drift_percentage_points

MIN_SAMPLES = 100
"""Consumed samples below which drift is noise and no condition is made of it (or the window, if smaller)."""
RELEASE = 0.8
"""MixtureDrifting ends when drift falls below this part of the tolerance, so that it does not flap."""
FAILURES = 3
"""Failed reads in a row that make a router or an engine count as unreachable."""
LONG_PAUSE_SECONDS = 60.0
"""A pause longer than this is told of: every step of a trainer has a short one."""
MOST_REASON = 120
"""Characters of an engine's reason that a condition shows; GET /weights has all."""
STALE_SECONDS = 30.0
"""How long a router may enforce an older revision than the status holds, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What could not be read, as counted by the loop."""

    routers: tuple[str, ...] = ()
    """Ready routers whose snapshot failed `FAILURES` times in a row."""
    engines: tuple[str, ...] = ()
    """Ready engines whose metrics failed `FAILURES` times in a row."""
    doubtful: bool = False
    """A read failed, too few times in a row to count: what was said before stays."""


def mixture_status(spec: RolloutPoolSpec, merged: Merged) -> MixtureStatus:
    """The consumed mixture against the target."""
    total = merged.consumed
    target = {workload.name: workload.share for workload in spec.workloads}
    consumed = {name: merged.classes[name].consumed / total if total else 0.0 for name in target}
    return MixtureStatus(
        target=[ClassShare(name=name, percent=round(100 * part, 1)) for name, part in target.items()],
        consumed=[ClassShare(name=name, percent=round(100 * part, 1)) for name, part in consumed.items()],
        drift_percentage_points=round(drift_percentage_points(target, consumed), 1) if total else 0.0,
        window=total,
    )


def informational(
    spec: RolloutPoolSpec,
    *,
    admission: AdmissionStatus | None,
    mixture: MixtureStatus | None,
    trouble: Trouble,
    snapshots: Sequence[AdmissionSnapshot],
    before: Iterable[Condition],
    generation: int,
    now: float,
) -> tuple[Condition, ...]:
    """AdmissionThrottled, MixtureDrifting, WeightsConsistent and Degraded.

    They leave the pool Ready, but for WeightsConsistent where no engine may be sent requests.
    """
    stale = _stale(admission, snapshots, now)
    weights = next((item.weights for item in snapshots if item.weights), None)
    found = []
    if admission:
        found.append(throttled(spec, admission, snapshots, generation))
    if mixture:
        found.append(_drifting(spec, mixture, before, generation))
    if weights:
        found.append(_weights(weights, generation))
    degraded = _degraded(trouble, stale, generation)
    if degraded.status is ConditionStatus.TRUE or not trouble.doubtful:
        found.append(degraded)
    return tuple(found)


def _drifting(
    spec: RolloutPoolSpec, mixture: MixtureStatus, before: Iterable[Condition], generation: int
) -> Condition:
    tolerance = spec.mixture.tolerance_percentage_points
    drifted = any(
        item.type is ConditionType.MIXTURE_DRIFTING and item.status is ConditionStatus.TRUE for item in before
    )
    limit = tolerance * (RELEASE if drifted else 1.0)
    enough = mixture.window >= min(MIN_SAMPLES, spec.mixture.window_samples)
    holds = enough and mixture.drift_percentage_points > limit
    words = (
        f"drift {mixture.drift_percentage_points:.1f} percentage points over {mixture.window} samples, "
        f"tolerance {tolerance:g}" + ("" if enough else ": too few samples to judge")
    )
    reason = reasons.BEYOND_TOLERANCE if holds else reasons.WITHIN_TOLERANCE
    return condition(ConditionType.MIXTURE_DRIFTING, holds, reason, words, generation)


def _weights(weights: SnapshotWeights, generation: int) -> Condition:
    """Whether all engines have the pool's weights, as the one router says that may synchronise them."""
    kind, lagging = ConditionType.WEIGHTS_CONSISTENT, weights.stale_engines
    version = f"weights {weights.version!r}" if weights.version else "the same weights"
    first = f"{lagging[0]} {_cut(weights.stale_because)}" if lagging else ""
    if weights.unserved_since is not None:
        words = (
            f"none of the engines that answer has the pool's weights since {rfc3339(weights.unserved_since)}"
            f" ({_count(len(lagging), 'engine')} without them: {_names(lagging)};"
            f" {first}); requests wait in the router until"
            " the trainer has sent a whole weight update again: /start_weight_update, /update_weights,"
            " /finish_weight_update, and /resume if it paused the pool; GET /weights on the weight port has"
            " every engine's reason"
        )
        return condition(kind, False, reasons.NO_ENGINE_HAS_CURRENT_WEIGHTS, words, generation)
    if lagging:
        words = (
            f"{_count(len(lagging), 'engine')} without the pool's weights ({_names(lagging)};"
            f" {first}): no request goes there before the next weight update,"
            " or until GET /weight_info names the pool's version"
        )
        return condition(kind, False, reasons.STALE_WEIGHTS, words, generation)
    if weights.paused_seconds > LONG_PAUSE_SECONDS:
        words = f"all engines have {version}; a trainer has paused the pool for over {LONG_PAUSE_SECONDS:g} s"
        return condition(kind, True, reasons.LONG_PAUSE, words, generation)
    return condition(kind, True, reasons.SAME_WEIGHTS, f"all engines have {version}", generation)


def _cut(reason: str) -> str:
    """A reason, which may quote an engine's answer, so short that the advice after it is read."""
    return reason if len(reason) <= MOST_REASON else reason[: MOST_REASON - 1] + "…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _degraded(trouble: Trouble, stale: str, generation: int) -> Condition:
    kind = ConditionType.DEGRADED
    if trouble.routers:
        words = f"no snapshot from router {_names(trouble.routers)}: caps stay as they are"
        return condition(kind, True, reasons.ROUTER_UNREACHABLE, words, generation)
    if stale:
        return condition(kind, True, reasons.STALE_CAPS, stale, generation)
    if trouble.engines:
        words = f"no metrics from engine {_names(trouble.engines)}: last known capacity is used"
        return condition(kind, True, reasons.ENGINE_METRICS_STALE, words, generation)
    return condition(kind, False, reasons.HEALTHY, "routers and engines report", generation)


def _stale(admission: AdmissionStatus | None, snapshots: Iterable[AdmissionSnapshot], now: float) -> str:
    if admission is None or now - (unix_seconds(admission.computed_at) or now) < STALE_SECONDS:
        return ""
    behind = [item for item in snapshots if item.applied_revision < admission.revision]
    return "; ".join(
        f"router {item.router} enforces revision {item.applied_revision}, status holds {admission.revision}"
        for item in behind
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
