"""Admission caps: how many sessions of each class may be resident on one engine.

MISA-T (arXiv 2608.11152, section 4) gives a class the part of an engine's KV blocks that its demand earns,
where demand is in block-seconds: N unfinished sessions, each holding k blocks for T seconds, so R = N k T.
The class's quota is M = C R / sum(R) of the C protected blocks, and its cap is K = floor(M / k).

The other policies are the paper's baselines: MISA leaves time out (R = N k), Session has one class-blind cap,
Static divides C by the shares of the spec, None admits everything.

The paper gives every class max(1, K), which may exceed C. With feasible floors they are granted only where
they fit, and what they take comes from the quotas of the others, so that sum(K k) <= C. The one exception is
an engine too small for any session: one class may still run one session there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolloutpool_api.serving import AdmissionPolicy

UNLIMITED = 1_000_000
"""Cap, in sessions, of policy None: more than any engine can hold."""

MIN_FOOTPRINT_BLOCKS = 1.0
"""Least footprint counted for a session, in blocks: none holds less than one."""

ROUNDING = 1e-9
"""Relative slack, so that a quota of exactly n sessions does not round down to n - 1."""


@dataclass(frozen=True)
class ClassDemand:
    """What one class asks of one engine."""

    name: str
    """Class."""
    share: float
    """Part of the consumed samples that the trainer wants, 0 to 1."""
    sessions: float
    """Unfinished sessions (N): resident on the engine, and its part of the queue."""
    footprint_blocks: float
    """Mean KV blocks that a resident session holds (k)."""
    residency_seconds: float
    """Mean time that a session stays, in seconds (T)."""
    debt: float = 0.0
    """Samples behind the target mixture (negative: ahead). Orders the floors where not all of them fit."""


@dataclass(frozen=True)
class CapInputs:
    """One engine and the demand on it."""

    protected_blocks: int
    """KV blocks of the engine that admitted sessions may fill (C)."""
    floor: int
    """Sessions that every class may hold whatever its demand, where they fit."""
    feasible_floors: bool
    """False: every class keeps its floor even where they do not fit together, as in the paper."""
    classes: tuple[ClassDemand, ...]
    """Every class of the spec, with or without demand."""


@dataclass(frozen=True)
class CapResult:
    """Caps of one engine."""

    caps: Mapping[str, int]
    """Sessions that may be resident, by class. With `class_blind`: of all classes together."""
    block_second_share: Mapping[str, float]
    """Part of the demand in block-seconds (N k T), by class; sums to 1, or to 0 without demand."""
    floors_fit: bool
    """False: the floors of all classes together exceed C, so some classes have a cap below their floor and
    take turns (see `admission.decide`)."""
    class_blind: bool = False
    """True (policy Session): each cap bounds the sessions of all classes together."""


def compute_caps(policy: AdmissionPolicy, inputs: CapInputs) -> CapResult:
    """Caps of one engine under a policy; see the module's docstring for the equations.

    A class without demand gets its floor, so that it can start. With no demand in any class, sessions are
    taken to come in the proportions of the shares.
    """
    classes = inputs.classes
    caps, floors_fit = _caps(policy, inputs, inputs.protected_blocks)
    return CapResult(
        caps=caps,
        block_second_share=_normalised({c.name: c.sessions * _block_seconds(c) for c in classes}),
        floors_fit=floors_fit,
        class_blind=policy is AdmissionPolicy.SESSION,
    )


def _caps(policy: AdmissionPolicy, inputs: CapInputs, protected: int) -> tuple[dict[str, int], bool]:
    classes = inputs.classes
    floors_fit = sum(inputs.floor * _footprint(c) for c in classes) <= protected
    if policy is AdmissionPolicy.NONE:
        return {c.name: UNLIMITED for c in classes}, True
    if policy is AdmissionPolicy.SESSION:
        cap = _session_cap(protected, classes)
        return {c.name: cap for c in classes}, floors_fit
    if not inputs.feasible_floors:
        earned = _divide(protected, 0, classes, _weights(policy, classes))
        return {name: max(inputs.floor, cap) for name, cap in earned.items()}, floors_fit
    if not floors_fit:
        return _floors_that_fit(protected, inputs.floor, classes), False
    return _divide(protected, inputs.floor, classes, _weights(policy, classes)), True


def _divide(
    protected: int, floor: int, classes: Sequence[ClassDemand], weights: Mapping[str, float]
) -> dict[str, int]:
    """Divide C by the weights; classes that earn less than their floor get it and leave the division."""
    caps: dict[str, int] = {}
    open_classes = list(classes)
    while open_classes:
        free = protected - sum(floor * _footprint(c) for c in classes if c.name in caps)
        total = sum(weights[c.name] for c in open_classes)
        earned = {
            c.name: int(free * (weights[c.name] / total) / _footprint(c) * (1 + ROUNDING)) if total > 0 else 0
            for c in open_classes
        }
        below = [c for c in open_classes if earned[c.name] < floor]
        if not below:
            return {c.name: (caps | earned)[c.name] for c in classes}
        caps |= {c.name: floor for c in below}
        open_classes = [c for c in open_classes if c.name not in caps]
    return {c.name: caps[c.name] for c in classes}


def _floors_that_fit(protected: int, floor: int, classes: Sequence[ClassDemand]) -> dict[str, int]:
    """One session a class and round, the class furthest behind first, while they fit; at least one in all."""
    order = sorted(classes, key=lambda c: (-c.debt, -c.share))
    caps = {c.name: 0 for c in classes}
    left = float(protected)
    for _ in range(floor):
        for c in order:
            if _footprint(c) <= left:
                caps[c.name] += 1
                left -= _footprint(c)
    if not any(caps.values()) and order:
        caps[order[0].name] = 1
    return caps


def _session_cap(protected: int, classes: Sequence[ClassDemand]) -> int:
    """The class-blind cap: C over the mean footprint of the sessions there are; at least 1."""
    sessions = _sessions(classes)
    total = sum(sessions.values())
    mean = (
        sum(sessions[c.name] * _footprint(c) for c in classes) / total if total > 0 else MIN_FOOTPRINT_BLOCKS
    )
    return max(1, int(protected / mean * (1 + ROUNDING)))


def _weights(policy: AdmissionPolicy, classes: Sequence[ClassDemand]) -> dict[str, float]:
    if policy is AdmissionPolicy.STATIC:
        return {c.name: c.share for c in classes}
    sessions = _sessions(classes)
    if policy is AdmissionPolicy.MISA:
        return {c.name: sessions[c.name] * _footprint(c) for c in classes}
    return {c.name: sessions[c.name] * _block_seconds(c) for c in classes}


def _sessions(classes: Sequence[ClassDemand]) -> dict[str, float]:
    """Unfinished sessions (N) by class; the shares stand in while there are none at all."""
    if any(c.sessions > 0 for c in classes):
        return {c.name: c.sessions for c in classes}
    return {c.name: c.share for c in classes}


def _block_seconds(c: ClassDemand) -> float:
    return _footprint(c) * c.residency_seconds


def _footprint(c: ClassDemand) -> float:
    return max(c.footprint_blocks, MIN_FOOTPRINT_BLOCKS)


def _normalised(parts: Mapping[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    return {name: part / total if total > 0 else 0.0 for name, part in parts.items()}
