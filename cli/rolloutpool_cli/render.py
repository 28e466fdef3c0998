"""A RolloutPool as text, in the manner of `kubectl describe`. Pure: the present is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rolloutpool_api.conditions import Condition
from rolloutpool_api.status import ClassShare, PlanGroup, PlanStatus
from rolloutpool_api.v1alpha1 import RolloutPool
from rolloutpool_cli.durations import format_age
from rolloutpool_cli.tables import columns, fields, section

NOTHING = "-"


@dataclass(frozen=True)
class Event:
    """Something that happened to a pool."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int
    """How often."""
    last_seen: str
    """When last, as RFC 3339."""


def describe(pool: RolloutPool, *, events: Sequence[Event] = (), now: datetime) -> str:
    """Everything that there is to know of a pool, as text that ends with a newline.

    Args:
        pool: the object.
        events: oldest first.
        now: the present, with a time zone.
    """
    blocks = [
        _head(pool),
        section("Conditions", _conditions(pool.status.conditions, now)),
        section("Plan", _plan(pool.status.plan)),
        section("Roles", _roles(pool)),
        section("Admission", _admission(pool)),
        section("Classes", _classes(pool)),
        section("Engines", _engines(pool)),
        section("Events", _events(events, now)),
    ]
    return "\n".join(line for block in blocks for line in block) + "\n"


def ready_message(pool: RolloutPool) -> str:
    """What the pool waits for to be Ready, or that it is; in a line."""
    found = condition(pool, "Ready")
    return f"{found.reason}: {found.message}" if found else pool.status.phase


def condition(pool: RolloutPool, type_: str) -> Condition | None:
    """Find a condition by its type."""
    return next((item for item in pool.status.conditions if item.type == type_), None)


def ready(pool: RolloutPool) -> bool:
    """Whether the pool is Ready, and says so of its newest spec."""
    found = condition(pool, "Ready")
    return (
        found is not None
        and found.status == "True"
        and pool.status.observed_generation == pool.metadata.generation
    )


def format_group(group: PlanGroup) -> str:
    """A group's name for people: role and parallelism."""
    pipeline = f" PP{group.pipeline_parallel}" if group.pipeline_parallel > 1 else ""
    return f"{group.role} TP{group.tensor_parallel}{pipeline}"


def _head(pool: RolloutPool) -> list[str]:
    spec, status, meta = pool.spec, pool.status, pool.metadata
    stale = (
        ""
        if status.observed_generation == meta.generation
        else f" (status speaks of {status.observed_generation})"
    )
    shares = ", ".join(f"{workload.name} {100 * workload.share:g}%" for workload in spec.workloads)
    slo = spec.slo
    goals = [
        f"TTFT p95 {slo.ttft_milliseconds} ms" if slo and slo.ttft_milliseconds else "",
        f"ITL p95 {slo.itl_milliseconds} ms" if slo and slo.itl_milliseconds else "",
    ]
    return fields(
        [
            ("Name", meta.name),
            ("Namespace", meta.namespace),
            ("Generation", f"{meta.generation}{stale}"),
            ("Phase", status.phase),
            ("Paused", "True" if spec.paused else ""),
            ("Model", spec.model.name),
            ("Mixture", shares),
            ("GPU budget", f"{spec.gpus.budget} x {spec.gpus.resource_name}"),
            ("SLO", ", ".join(goal for goal in goals if goal)),
            ("Planning", f"{spec.planning.mode}, {spec.planning.objective}"),
            ("Policy", f"{spec.admission.policy}, safety {spec.admission.safety:g}"),
            ("URL", status.endpoints.router),
            ("Weight sync", status.endpoints.weights),
        ]
    )


def _conditions(conditions: Sequence[Condition], now: datetime) -> list[str]:
    rows = [
        (item.type, item.status, item.reason, _age(item.last_transition_time, now), item.message)
        for item in conditions
    ]
    return columns(("Type", "Status", "Reason", "Age", "Message"), rows, underline=True) if rows else []


def _plan(plan: PlanStatus | None) -> list[str]:
    if plan is None:
        return []
    rows = [
        (
            format_group(group),
            str(group.replicas),
            str(group.replicas * group.gpus_per_replica),
            _optional(group.ttft_p95_milliseconds, " ms"),
            _optional(group.itl_p95_milliseconds, " ms"),
            _optional(group.utilization_percent, "%"),
        )
        for group in plan.groups
    ]
    return [
        *fields(
            [
                ("Hash", plan.hash),
                ("Solver", f"{plan.solver}, {plan.solver_status}"),
                ("Objective", plan.objective),
                ("GPUs", f"{plan.gpus_used} of {plan.gpu_budget}"),
                ("Limited by", plan.binding_constraint),
            ]
        ),
        *columns(("Group", "Replicas", "GPUs", "TTFT p95", "ITL p95", "Use"), rows, underline=True),
        *(f"Not chosen: {other.summary}: {other.rejected}" for other in plan.alternatives),
    ]


def _roles(pool: RolloutPool) -> list[str]:
    rows = [
        (role.name, f"{role.ready_replicas}/{role.replicas}", str(role.updated_replicas), role.revision)
        for role in pool.status.roles
    ]
    return columns(("Role", "Ready", "Updated", "Revision"), rows, underline=True) if rows else []


def _admission(pool: RolloutPool) -> list[str]:
    admission, mixture = pool.status.admission, pool.status.mixture
    pairs = []
    if admission is not None:
        pairs += [
            ("Policy", str(admission.policy)),
            ("Revision", f"{admission.revision} of {admission.computed_at}"),
        ]
    if mixture is not None:
        drift = f"{mixture.drift_percentage_points:.1f} pp over the last {mixture.window} samples"
        pairs += [("Drift", f"{drift} (tolerated: {pool.spec.mixture.tolerance_percentage_points:g} pp)")]
    return fields(pairs)


def _classes(pool: RolloutPool) -> list[str]:
    admission, mixture = pool.status.admission, pool.status.mixture
    consumed = _percent(mixture.consumed if mixture else ())
    target = {workload.name: f"{100 * workload.share:.1f}%" for workload in pool.spec.workloads}
    rows = [
        (
            item.name,
            target.get(item.name, NOTHING),
            consumed.get(item.name, NOTHING),
            str(item.cap),
            str(item.active),
            str(item.parked),
            str(item.waiting),
            f"{item.oldest_wait_seconds}s",
            str(item.held),
            f"{item.debt:+d}" if item.debt else "0",
            f"{item.footprint_blocks} blocks",
            f"{item.residency_seconds}s",
            f"{item.block_second_share}%",
            item.source,
        )
        for item in (admission.classes if admission else ())
    ]
    headers = (
        "Class",
        "Target",
        "Consumed",
        "Cap",
        "Active",
        "Parked",
        "Waiting",
        "Oldest",
        "Held",
        "Debt",
        "Footprint",
        "Residency",
        "Demand",
        "Source",
    )
    return columns(headers, rows, underline=True) if rows else []


def _engines(pool: RolloutPool) -> list[str]:
    admission = pool.status.admission
    known = {engine.name: engine for engine in (admission.engines if admission else ())}
    rows = []
    for endpoint in pool.status.endpoints.admin:
        engine = known.get(endpoint.name)
        caps = ", ".join(f"{c.name} {c.active}/{c.cap}" for c in engine.classes) if engine else NOTHING
        rows.append(
            (
                endpoint.name,
                endpoint.role,
                "Yes" if endpoint.ready else "No",
                f"{engine.protected_blocks}/{engine.capacity_blocks}" if engine else NOTHING,
                caps or NOTHING,
                endpoint.url,
            )
        )
    headers = ("Engine", "Role", "Ready", "Blocks", "Active/Cap", "URL")
    return columns(headers, rows, underline=True) if rows else []


def _events(events: Sequence[Event], now: datetime) -> list[str]:
    rows = [
        (
            event.type,
            event.reason,
            _age(event.last_seen, now) + (f" (x{event.count})" if event.count > 1 else ""),
            event.message,
        )
        for event in events
    ]
    return columns(("Type", "Reason", "Age", "Message"), rows, underline=True) if rows else []


def _age(timestamp: str, now: datetime) -> str:
    try:
        return format_age((now - datetime.fromisoformat(timestamp)).total_seconds())
    except (ValueError, TypeError):
        return NOTHING


def _optional(value: int | None, unit: str) -> str:
    return NOTHING if value is None else f"{value}{unit}"


def _percent(shares: Sequence[ClassShare]) -> dict[str, str]:
    return {share.name: f"{share.percent:.1f}%" for share in shares}
