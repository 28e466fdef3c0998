"""AdmissionThrottled: who waits, and what for: caps, the mixture, a pause, or an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rolloutpool_api.conditions import Condition, ConditionType
from rolloutpool_api.snapshot import AdmissionSnapshot
from rolloutpool_api.spec import RolloutPoolSpec
from rolloutpool_api.status import AdmissionStatus, ClassAdmission
from rolloutpool_operator.core import reasons
from rolloutpool_operator.core.conditions import condition
from rolloutpool_router.core.policy import rules_of

HELD_WORDS = {
    reasons.NO_ENGINE_UP: "no engine may be sent requests",
    reasons.HELD_BY_PAUSE: "the pool is paused for new weights",
}
PAUSE_SECONDS = 10.0
"""A pause longer than this is told of as what holds requests: every step of a trainer has a short one."""


def throttled(
    spec: RolloutPoolSpec,
    admission: AdmissionStatus,
    snapshots: Sequence[AdmissionSnapshot],
    generation: int,
) -> Condition:
    """The condition.

    Args:
        spec: the pool's spec.
        admission: the classes as the status shows them.
        snapshots: what the routers say now.
        generation: of the spec.
    """
    waiting = [item for item in admission.classes if item.waiting]
    held_by = _held_by(admission, snapshots)
    held = _held(snapshots) if held_by else ""
    kind = ConditionType.ADMISSION_THROTTLED
    if not waiting and not held:
        return condition(kind, False, reasons.NOT_THROTTLED, "no session waits", generation)
    words = [HELD_WORDS[held_by] + (f": requests held: {held}" if held else "")] if held_by else []
    words += [_waits(item, spec) for item in waiting]
    mixture = any(item.ahead for item in waiting)
    if mixture:
        words += _behind(admission.classes, spec)
    words += _pressed(admission)
    reason = held_by or (reasons.HELD_FOR_MIXTURE if mixture else reasons.CAPS_REACHED)
    return condition(kind, True, reason, "; ".join(words), generation)


def _held_by(admission: AdmissionStatus, snapshots: Sequence[AdmissionSnapshot]) -> str:
    """What holds all requests, whatever the caps; empty where nothing does."""
    homes = {engine.name for engine in admission.engines}
    seen = [e.healthy for snapshot in snapshots for e in snapshot.engines if e.name in homes]
    if seen and not any(seen):
        return reasons.NO_ENGINE_UP
    paused = max((item.weights.paused_seconds for item in snapshots if item.weights), default=0.0)
    return reasons.HELD_BY_PAUSE if paused > PAUSE_SECONDS else ""


def _held(snapshots: Sequence[AdmissionSnapshot]) -> str:
    """Requests that no cap holds, by class; empty where there are none."""
    counts: Counter[str] = Counter()
    for snapshot in snapshots:
        counts.update({item.name: item.held for item in snapshot.classes if item.held})
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _waits(item: ClassAdmission, spec: RolloutPoolSpec) -> str:
    words = (
        f"{item.name}: {item.waiting} wait (longest {item.oldest_wait_seconds} s), "
        f"{item.active} of {item.cap} resident"
    )
    if not item.ahead:
        return words
    most = rules_of(spec, spec.admission.policy).admission.most_ahead or 0.0
    ahead = f"{_points(item.ahead, spec)} ahead of its share, {_points(most, spec)} allowed"
    return f"{words}, held for the mixture: {ahead}"


def _behind(classes: Sequence[ClassAdmission], spec: RolloutPoolSpec) -> list[str]:
    """The classes that the others wait for."""
    behind = sorted((item for item in classes if item.debt > 0), key=lambda item: -item.debt)
    names = ", ".join(f"{item.name} by {_points(item.debt, spec)}" for item in behind)
    return [f"behind: {names}"] if names else []


def _points(samples: float, spec: RolloutPoolSpec) -> str:
    """Samples, and the same as a part of the mixture's window in percentage points."""
    points = 100 * samples / spec.mixture.window_samples
    return f"{samples:.0f} samples ({points:.1f} points)"


def _pressed(admission: AdmissionStatus) -> list[str]:
    """How much pressure takes away on the worst engine; nothing where there is none."""
    worst = max(admission.engines, key=lambda engine: engine.pressure, default=None)
    if worst is None or not worst.pressure:
        return []
    pressed = sum(engine.pressure > 0 for engine in admission.engines)
    engines = f"{pressed} of {len(admission.engines)} engines"
    return [f"KV pressure on {engines}, at most {worst.pressure} % ({worst.name})"]
