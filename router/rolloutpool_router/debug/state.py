"""The router's state as the debug page shows it: plain values for JSON, of bounded size, without secrets.

Classes are told once, in order; whatever is by class elsewhere is a list in that order. So 256 engines with
16 classes stay below 150 KB. Times are seconds ago or seconds long, never of a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rolloutpool_router.core.classes import ClassState
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.estimates import Source
from rolloutpool_router.core.mixture import drift_percentage_points, shares
from rolloutpool_router.core.peers import Peers
from rolloutpool_router.core.queues import Ticket
from rolloutpool_router.core.view import Engine
from rolloutpool_router.decisions import REASONS, Decisions, Noted, decision_of, reason_of
from rolloutpool_router.state_metrics import DataPlane, total_caps

MOST_NAME = 24
"""Characters of a session id that are shown."""
MOST_WORDS = 200
"""Characters of a reason in words that are shown."""
MOST_WAITS = 3
"""Waiting sessions shown of each class: those that are next."""
MOST_ENGINES = 256
MOST_CLASSES = 64

Json = dict[str, Any]


@dataclass(frozen=True)
class Shown:
    """Where the state is."""

    router: str
    controller: AdmissionController
    peers: Peers
    plane: DataPlane
    decisions: Decisions
    status_age: Callable[[], float]
    """Seconds since the object was last seen."""
    ignored: Callable[[], int]
    """Objects that were malformed or stale."""
    draining: Callable[[], bool]


def debug_state(shown: Shown, now: float) -> Json:
    """All that the page shows; `now` in seconds of the controller's clock."""
    controller = shown.controller
    names = list(islice(controller.classes, MOST_CLASSES))
    return {
        "pool": _pool(shown),
        "plane": _plane(shown.plane),
        "classes": _classes(controller, names, now),
        "engines": [
            _engine(controller, engine, names, now)
            for engine in islice(controller.fleet.engines.values(), MOST_ENGINES)
        ],
        "mixture": _mixture(controller),
        "entered": _decisions(shown.decisions.entered(), now),
        "refused": _decisions(shown.decisions.refused(), now),
        "reasons": REASONS,
        "routers": _routers(shown.peers),
    }


def _pool(shown: Shown) -> Json:
    view = shown.controller.view
    return {
        "router": shown.router,
        "name": view.name if view is not None else None,
        "model": view.spec.model.name if view is not None else None,
        "policy": view.policy.value if view is not None else None,
        "generation": view.generation if view is not None else 0,
        "revision": view.revision if view is not None else 0,
        "statusAge": round(shown.status_age(), 1),
        "ignored": shown.ignored(),
        "draining": shown.draining(),
        "sessions": len(shown.controller.table),
        "stalled": shown.controller.stalled.requests,
        "prefixKeys": len(shown.controller.fleet.prefixes),
    }


def _plane(plane: DataPlane) -> Json:
    return {
        "connections": plane.connections(),
        "requests": plane.requests(),
        "waiting": plane.waiting(),
        "answers": plane.answers(),
        "bufferedBytes": plane.buffered_bytes(),
        "paused": plane.paused(),
    }


def _classes(controller: AdmissionController, names: list[str], now: float) -> list[Json]:
    caps, debts = total_caps(controller.fleet.engines.values()), controller.debts()
    wanted = controller.view.shares if controller.view is not None else {}
    return [
        _class(controller, name, controller.classes[name], now)
        | {"share": wanted.get(name, 0.0), "cap": caps[name], "debt": round(debts[name], 1)}
        for name in names
    ]


def _class(controller: AdmissionController, name: str, state: ClassState, now: float) -> Json:
    books = controller.ledger.classes.get(name)
    return {
        "name": name,
        "active": controller.table.by_class[name],
        "running": controller.table.running_by_class[name],
        "parked": controller.table.parked_by_class[name],
        "waiting": len(state.queue),
        "oldestWait": round(state.queue.oldest_wait(now), 1),
        "next": [_ticket(ticket, now) for ticket in islice(state.queue, MOST_WAITS)],
        "footprint": round(books.cost.footprint_blocks, 1) if books is not None else None,
        "residency": round(books.cost.residency_seconds, 1) if books is not None else None,
        "source": (books.source if books is not None else Source.PRIORS).value,
        "observed": controller.ledger.finished(name),
        "finished": state.counters.finished,
        "adopted": state.counters.adopted,
        "rejected": state.counters.rejected,
    }


def _ticket(ticket: Ticket, now: float) -> Json:
    return {
        "session": _short(ticket.session, MOST_NAME),
        "waited": round(max(0.0, now - ticket.arrived_at), 1),
        "requests": ticket.requests,
        "tokens": ticket.prompt_tokens,
        "parked": ticket.parked,
    }


def _engine(controller: AdmissionController, engine: Engine, names: list[str], now: float) -> Json:
    books = controller.ledger.engines.get(engine.name)
    tally = controller.table.tally(engine.name)
    state = controller.fleet.state(engine.name, now)
    return {
        "name": engine.name,
        "role": engine.role.value,
        "state": state.standing.value,
        "reason": _short(state.reason, MOST_WORDS),
        "capacity": engine.capacity_blocks,
        "protected": round(controller.occupancy.protected_blocks(engine.name)),
        "held": round(books.held) if books is not None else 0,
        "pressure": round(100 * (1 - controller.retention.factor(engine.name))),
        "sessions": [tally[name].sessions if name in tally else 0 for name in names],
        "caps": [engine.caps.get(name, 0) if engine.holds_sessions else 0 for name in names],
        "prefillTokens": controller.fleet.prefill_tokens[engine.name],
    }


def _mixture(controller: AdmissionController) -> Json:
    view, consumed = controller.view, shares(controller.consumed.counts)
    wanted = view.shares if view is not None else {}
    return {
        "consumed": [round(consumed.get(name, 0.0), 4) for name in islice(controller.classes, MOST_CLASSES)],
        "drift": round(drift_percentage_points(wanted, consumed), 2) if view is not None else 0.0,
        "tolerance": view.spec.mixture.tolerance_percentage_points if view is not None else 0.0,
        "samples": len(controller.consumed),
        "window": controller.consumed.window,
    }


def _decisions(noted: Iterable[Noted], now: float) -> list[Json]:
    return [
        {
            "ago": round(max(0.0, now - one.at), 1),
            "session": _short(one.session, MOST_NAME),
            "class": one.class_name,
            "engine": getattr(one.answer, "engine", None),
            "decision": decision_of(one.answer).value,
            "reason": reason_of(one.answer),
            "waited": round(getattr(one.answer, "waited_seconds", 0.0), 2),
        }
        for one in noted
    ]


def _routers(peers: Peers) -> Json:
    return {
        "others": [router.name for router in peers.others],
        "listed": peers.listed,
        "deserted": peers.deserted,
    }


def _short(text: str, most: int) -> str:
    """At most so many characters, each of which can be written."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return cut.encode(errors="replace").decode()
