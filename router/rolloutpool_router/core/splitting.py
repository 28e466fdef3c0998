"""One amount shared by several routers: what each should have, and what may be given out now.

`split` divides in proportion to demand by largest remainder (Hamilton's method): everybody gets the whole
part of the exact quota, and what is left goes to some of them, one each. `stage` turns such a target into
parts that may be written at once although routers apply them at different times: a part that shrinks is
written at once, one that grows only as far as what may still be in force anywhere leaves room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

SLACK = 0.1
"""How far a part may be from its exact quota before the split is made anew, as a part of the quota; one unit
always may. Without it every session that comes or goes would move a unit from router to router."""


@dataclass(frozen=True)
class Claim:
    """What one router asks of the amount."""

    demand: float
    """Units that it could use now: those in use and those that are waited for."""
    part: int = 0
    """Its part so far."""
    oldest_wait: float = 0.0
    """Longest wait for a unit there, in seconds; 0: nobody waits."""


@dataclass(frozen=True)
class Holding:
    """What one router may hold of the amount now."""

    in_force: int | None
    """Largest part that may be in force there; None: not known."""
    part: int = 0
    """Its part as of the last revision."""
    used: int = 0
    """Units in use as it last reported; more than its part after an adoption, or once its part shrank."""


def split(total: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """Parts by router; they sum to `total`, and each is less than one off its quota.

    While demand exceeds the total the quotas are in proportion to it; what there is beyond all demand is for
    everybody alike, since the next session may come to any router. Where not everybody who waits gets a whole
    unit, those who wait longest go first, so that everybody's turn comes. A split that is near enough stays.

    Args:
        total: what is shared.
        claims: by router, not empty.
    """
    demand = sum(claim.demand for claim in claims.values())
    if demand >= total:
        return apportion(total, claims)
    beyond = (total - demand) / len(claims)
    return _settled(total, {name: claim.demand + beyond for name, claim in claims.items()}, claims)


def apportion(total: int, claims: Mapping[str, Claim]) -> dict[str, int]:
    """As `split`, but in proportion to demand whatever there is; alike where there is none."""
    demand = sum(claim.demand for claim in claims.values())
    quotas = {
        name: total * claim.demand / demand if demand > 0 else total / len(claims)
        for name, claim in claims.items()
    }
    return _settled(total, quotas, claims)


def stage(total: int, targets: Mapping[str, int], holdings: Mapping[str, Holding]) -> dict[str, int]:
    """Parts that may be written now on the way to the targets.

    Whatever revisions the routers apply, and in whatever order among them, the largest parts that may be in
    force sum to at most `total`, or to what they summed to before where that was more. Units in use count as
    held, so the sessions of all routers together stay within the total as well (adopted ones apart). While it
    is not known what some router holds, nobody's part grows.

    Args:
        total: what is shared; the targets sum to at most this.
        targets: wanted parts by router; routers left out get none.
        holdings: by router, of all that may be alive, those without a target too.
    """
    if any(holding.in_force is None for holding in holdings.values()):
        return _frozen(total, targets, holdings)
    in_force = {name: holding.in_force or 0 for name, holding in holdings.items()}
    held = {name: max(in_force[name], holding.used) for name, holding in holdings.items()}
    room = total - sum(held.values())
    if room < 0:
        return {name: min(target, in_force.get(name, 0)) for name, target in targets.items()}
    wants = {name: max(0, target - held.get(name, 0)) for name, target in targets.items()}
    if sum(wants.values()) > room:
        wants = apportion(room, {name: Claim(want) for name, want in wants.items()})
    return {name: min(target, held.get(name, 0) + wants[name]) for name, target in targets.items()}


def _frozen(total: int, targets: Mapping[str, int], holdings: Mapping[str, Holding]) -> dict[str, int]:
    """The parts of the last revision, less where the total fell below them."""
    parts = {name: holdings[name].part if name in holdings else 0 for name in targets}
    if sum(parts.values()) <= total:
        return parts
    return apportion(total, {name: Claim(part) for name, part in parts.items()})


def _settled(total: int, quotas: Mapping[str, float], claims: Mapping[str, Claim]) -> dict[str, int]:
    """Whole parts for the quotas: those so far if they are near, else by largest remainder."""
    if _near(total, quotas, claims):
        return {name: claim.part for name, claim in claims.items()}
    parts = {name: math.floor(quota) for name, quota in quotas.items()}
    order = sorted(claims, key=lambda name: (*_turn(parts[name], quotas[name], claims[name]), name))
    for name in order[: total - sum(parts.values())]:
        parts[name] += 1
    return parts


def _near(total: int, quotas: Mapping[str, float], claims: Mapping[str, Claim]) -> bool:
    if sum(claim.part for claim in claims.values()) != total:
        return False
    return all(
        abs(claim.part - quotas[name]) <= max(1.0, SLACK * quotas[name])
        and (claim.part > 0 or not (claim.oldest_wait > 0 or quotas[name] >= 1))
        for name, claim in claims.items()
    )


def _turn(part: int, quota: float, claim: Claim) -> tuple[bool, float, bool, float]:
    """Order in which what is left is given out: the starving, then who had it before, then by remainder."""
    starving = claim.oldest_wait if part == 0 else 0.0
    return part == quota, -starving, claim.part <= part, part - quota
