"""Conditions, roles, phase and summary from facts; and that a status is written only where it changed."""

from dataclasses import replace
from typing import Any

import pytest

from rolloutpool_api.conditions import Condition, ConditionStatus, ConditionType
from rolloutpool_api.planning import Role
from rolloutpool_api.status import (
    AdmissionStatus,
    MixtureStatus,
    PlanGroup,
    PlanStatus,
    RolloutPoolStatus,
    Summary,
)
from rolloutpool_operator.core.children import ApplyChild, Child, Reason
from rolloutpool_operator.core.choosing import PlanChoice
from rolloutpool_operator.core.conditions import Applying
from rolloutpool_operator.core.engine_args import engine_revision
from rolloutpool_operator.core.observed import EngineFacts, Observed, PoolKey, RouterFacts, read_pool
from rolloutpool_operator.core.status import (
    AdmissionReport,
    compose,
    invalid_structure,
    planning_structure,
    status_patch,
    structure,
)
from rolloutpool_testkit.manifests import pool_manifest

READY_ROUTER = RouterFacts(name="router", ready=True, url="http://r")
WITHHELD = ApplyChild(child=Child(kind="Service", name="s", body={}), reason=Reason.CREATE)


def plan(*groups: tuple[Role, int]) -> PlanStatus:
    used = sum(replicas for _, replicas in groups)
    return PlanStatus(
        hash="h",
        solver="CBC",
        solver_status="Optimal",
        objective="o",
        gpus_used=used,
        gpu_budget=8,
        binding_constraint="b",
        groups=[
            PlanGroup(
                role=role, tensor_parallel=1, pipeline_parallel=1, replicas=replicas, gpus_per_replica=1
            )
            for role, replicas in groups
        ],
        computed_at="t",
    )


def choice(*groups: tuple[Role, int], **changes: Any) -> PlanChoice:
    found = PlanChoice(plan=plan(*groups), ready=True, reason="Planned", message="planned")
    return replace(found, **changes)


def observed(
    engines: tuple[EngineFacts, ...] = (), routers: tuple[RouterFacts, ...] = (READY_ROUTER,), **spec: Any
) -> Observed:
    body = pool_manifest(**spec)
    body["metadata"] |= {"generation": 3, "uid": "u", "resourceVersion": "1"}
    pool, invalid = read_pool(body)
    return Observed(
        key=PoolKey("rl", "pool"),
        body=body,
        pool=pool,
        invalid=invalid,
        engines=engines,
        routers=routers,
        router_url="http://pool-router.rl.svc:80",
    )


def engine(role: Role, number: int, ready: bool = True, **changes: Any) -> EngineFacts:
    pool = observed().pool
    assert pool is not None
    found = EngineFacts(
        name=f"pool-{role}-tp1-{number}",
        group=f"{role}-tp1",
        role=role,
        ready=ready,
        revision=engine_revision(pool.spec),
        url=f"http://{role}-{number}",
    )
    return replace(found, **changes)


def engines(role: Role, count: int, **changes: Any) -> tuple[EngineFacts, ...]:
    return tuple(engine(role, number, **changes) for number in range(count))


def conditions(*args: Any) -> dict[ConditionType, Condition]:
    return {item.type: item for item in structure(*args).conditions}


TWO = (Role.AGGREGATED, 2)


def test_a_pool_that_serves_as_planned() -> None:
    found = structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying())
    assert {item.type.value: item.status.value for item in found.conditions} == {
        "Ready": "True",
        "SpecValid": "True",
        "PlanReady": "True",
        "PlanApplied": "True",
        "DecodeReady": "True",
        "RouterReady": "True",
    }
    assert all(item.observed_generation == 3 for item in found.conditions)
    assert (found.phase, found.summary) == ("Ready", Summary(prefill="-", decode="2/2", gpus="2/8"))
    assert found.endpoints.router == "http://pool-router.rl.svc:80"
    assert [item.name for item in found.endpoints.admin] == ["pool-aggregated-tp1-0", "pool-aggregated-tp1-1"]
    role = found.roles[0]
    assert (role.name, role.replicas, role.ready_replicas, role.updated_replicas) == (
        Role.AGGREGATED,
        2,
        2,
        2,
    )


STUCK: dict[str, Any] = {"ready": False, "reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu"}
NO_VOLUME: dict[str, Any] = {**STUCK, "message": "claim hub-cache not found"}
HELD = "3 x aggregated-tp1 would gain 1 %"


@pytest.mark.parametrize(
    ("found", "chosen", "applying", "expected"),
    [
        pytest.param(
            engines(Role.AGGREGATED, 2), choice(TWO), Applying(), ("True", "Applied", "all 2"), id="applied"
        ),
        pytest.param((), choice(TWO), Applying(), ("False", "Progressing", "0 of 2"), id="engines to come"),
        pytest.param(
            engines(Role.AGGREGATED, 2, revision="old"),
            choice(TWO),
            Applying(),
            ("False", "Progressing", "0 of 2"),
            id="old revision",
        ),
        pytest.param(
            (engine(Role.AGGREGATED, 0), engine(Role.AGGREGATED, 1, **STUCK)),
            choice(TWO),
            Applying(),
            (
                "False",
                "InsufficientGPUs",
                "1 of 2 engines cannot be scheduled; pool-aggregated-tp1-1: Insufficient",
            ),
            id="no GPU free",
        ),
        pytest.param(
            (engine(Role.AGGREGATED, 0), engine(Role.AGGREGATED, 1, **NO_VOLUME)),
            choice(TWO),
            Applying(),
            ("False", "Unschedulable", "1 of 2 engines cannot be scheduled; pool-aggregated-tp1-1: claim"),
            id="no volume",
        ),
        pytest.param(
            engines(Role.AGGREGATED, 2),
            choice(TWO, held=HELD),
            Applying(),
            ("True", "HeldByHysteresis", HELD),
            id="held",
        ),
        pytest.param(
            (),
            choice(TWO),
            Applying(failures=("Service s: refused",)),
            ("False", "ApplyFailed", "refused"),
            id="refused",
        ),
        pytest.param(
            (),
            choice(TWO),
            Applying(withheld=(WITHHELD,)),
            ("False", "AutoApplyOff", "1 changes wait (apply Service s)"),
            id="plan only",
        ),
    ],
)
def test_plan_applied(
    found: tuple[EngineFacts, ...], chosen: PlanChoice, applying: Applying, expected: tuple[str, str, str]
) -> None:
    item = conditions(observed(found), chosen, applying)[ConditionType.PLAN_APPLIED]
    assert (item.status.value, item.reason) == expected[:2]
    assert expected[2] in item.message


def test_paused_says_so() -> None:
    found = structure(observed(paused=True), choice(TWO), Applying(withheld=(WITHHELD,)))
    applied = next(item for item in found.conditions if item.type is ConditionType.PLAN_APPLIED)
    assert (found.phase, applied.reason) == ("Paused", "Paused")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(
            engines(Role.DECODE, 1, ready=False), ("Starting", "0 of 1 engines serve"), id="loading"
        ),
        pytest.param(
            engines(Role.DECODE, 1, ready=False, reason="ImagePullBackOff", message="no such image"),
            ("ImagePullBackOff", "0 of 1 engines serve; pool-decode-tp1-0: ImagePullBackOff: no such image"),
            id="image",
        ),
        pytest.param(
            engines(Role.DECODE, 1, ready=False, reason="PodMissing"),
            ("Starting", "0 of 1"),
            id="pod to come",
        ),
        pytest.param(
            engines(Role.DECODE, 1, ready=False, reason="Odd-Reason"),
            ("OddReason", "Odd-Reason"),
            id="one word",
        ),
    ],
)
def test_engines_that_do_not_serve(found: tuple[EngineFacts, ...], expected: tuple[str, str]) -> None:
    chosen = choice((Role.PREFILL, 1), (Role.DECODE, 1))
    got = conditions(observed((*engines(Role.PREFILL, 1), *found)), chosen, Applying())
    assert got[ConditionType.PREFILL_READY].status is ConditionStatus.TRUE
    decode, ready = got[ConditionType.DECODE_READY], got[ConditionType.READY]
    assert decode.reason == expected[0]
    assert expected[1] in decode.message
    assert (ready.status, ready.reason) == (ConditionStatus.FALSE, expected[0])
    assert ready.message.startswith("DecodeReady: ")


@pytest.mark.parametrize(
    ("routers", "reason"),
    [
        pytest.param((), "RouterMissing", id="none"),
        pytest.param((RouterFacts(name="r", ready=False, url=""),), "Starting", id="starting"),
        pytest.param(
            (RouterFacts(name="r", ready=False, url="", reason="ErrImagePull"),), "ErrImagePull", id="image"
        ),
    ],
)
def test_router_ready(routers: tuple[RouterFacts, ...], reason: str) -> None:
    got = conditions(observed(engines(Role.AGGREGATED, 2), routers), choice(TWO), Applying())
    assert got[ConditionType.ROUTER_READY].reason == reason
    assert got[ConditionType.READY].status is ConditionStatus.FALSE


def test_without_a_plan_only_what_applies_is_said() -> None:
    none = PlanChoice(plan=None, ready=False, reason="Infeasible", message="nodes: too small")
    found = structure(observed(), none, Applying())
    types = {item.type for item in found.conditions}
    assert types == {
        ConditionType.READY,
        ConditionType.SPEC_VALID,
        ConditionType.PLAN_READY,
        ConditionType.ROUTER_READY,
    }
    assert (found.phase, found.summary.gpus) == ("Failed", "-")
    assert planning_structure(observed()).phase == "Planning"


@pytest.mark.parametrize(
    ("before", "serving", "phase"),
    [
        pytest.param("Ready", 1, "Degraded", id="was ready, one serves"),
        pytest.param("Ready", 0, "Progressing", id="was ready, none serves"),
        pytest.param("Progressing", 1, "Progressing", id="coming up"),
    ],
)
def test_phase(before: str, serving: int, phase: str) -> None:
    found = tuple(engine(Role.AGGREGATED, number, ready=number < serving) for number in range(2))
    seen = observed(found)
    seen = replace(seen, body={**seen.body, "status": {"phase": before}})
    assert structure(seen, choice(TWO), Applying()).phase == phase


def test_an_invalid_spec_keeps_what_runs() -> None:
    seen = observed(gpus__budget=0)
    stored = compose(
        structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying()),
        AdmissionReport(),
        stored=RolloutPoolStatus(),
        now="t",
    )
    seen = replace(seen, body={**seen.body, "status": stored.to_wire()})
    found = compose(invalid_structure(seen), AdmissionReport(), stored=stored, now="t2")
    assert {item.type: item.reason for item in found.conditions} == {
        ConditionType.READY: "InvalidSpec",
        ConditionType.SPEC_VALID: "InvalidSpec",
    }
    assert "spec.gpus.budget" in found.conditions[1].message
    assert (found.phase, found.plan, found.endpoints) == ("Failed", stored.plan, stored.endpoints)


def test_a_broken_status_makes_no_spec_invalid() -> None:
    seen = observed()
    seen = replace(seen, body={**seen.body, "status": {"phase": 3, "conditions": "x"}})
    assert read_pool(seen.body)[0] is not None
    assert seen.status == RolloutPoolStatus()


def test_nothing_is_written_where_nothing_changed() -> None:
    part = structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying())
    stored = compose(part, AdmissionReport(), stored=RolloutPoolStatus(), now="2026-01-01T00:00:00Z")
    again = compose(part, AdmissionReport(), stored=stored, now="2026-01-01T00:01:00Z")
    assert status_patch(stored, again) == {}


def test_transition_times_move_with_the_status_alone() -> None:
    first = structure(observed(engines(Role.AGGREGATED, 1)), choice(TWO), Applying())
    stored = compose(first, AdmissionReport(), stored=RolloutPoolStatus(), now="t1")
    second = structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying())
    found = {
        item.type: item for item in compose(second, AdmissionReport(), stored=stored, now="t2").conditions
    }
    assert found[ConditionType.DECODE_READY].last_transition_time == "t2"
    assert found[ConditionType.SPEC_VALID].last_transition_time == "t1"


def test_the_summary_forgets_nothing_stale() -> None:
    """A merge patch merges: a text that no longer applies must be overwritten, not left out."""
    chosen = choice((Role.PREFILL, 1), (Role.DECODE, 1))
    both = structure(observed((*engines(Role.PREFILL, 1), *engines(Role.DECODE, 1))), chosen, Applying())
    stored = compose(both, AdmissionReport(), stored=RolloutPoolStatus(), now="t")
    one = structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying())
    new = compose(one, AdmissionReport(), stored=stored, now="t")
    assert status_patch(stored, new)["summary"]["prefill"] == "-"


def test_the_summary_says_each_class_in_a_line() -> None:
    admission = AdmissionStatus.model_validate(
        {
            "revision": 1,
            "policy": "MISA-T",
            "computedAt": "t",
            "classes": [
                {"name": "a", "cap": 16, "active": 11, "parked": 3, "waiting": 14, "oldestWaitSeconds": 5}
            ],
        }
    )
    shares = {"target": [{"name": "a", "percent": 40}], "consumed": [{"name": "a", "percent": 38.2}]}
    mixture = MixtureStatus.model_validate({**shares, "driftPercentagePoints": 1.8, "window": 300})
    part = structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying())
    report = AdmissionReport(admission=admission, mixture=mixture)
    found = compose(part, report, stored=RolloutPoolStatus(), now="t").summary
    assert found.drift == "1.8pp"
    assert found.classes == [
        "a: 11 of 16 sessions in, 3 parked, 14 waiting (longest 5 s); 38.2 % of the samples, share 40 %"
    ]


def test_informational_conditions_stay_until_the_loop_speaks() -> None:
    part = structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying())
    kept = Condition(type=ConditionType.DEGRADED, status=ConditionStatus.TRUE, reason="StaleCaps")
    stored = RolloutPoolStatus(conditions=[kept])
    assert kept.type in {
        item.type for item in compose(part, AdmissionReport(), stored=stored, now="t").conditions
    }
    healthy = Condition(type=ConditionType.DEGRADED, status=ConditionStatus.FALSE, reason="Healthy")
    found = compose(part, AdmissionReport(conditions=(healthy,)), stored=stored, now="t").conditions
    assert [item.reason for item in found if item.type is ConditionType.DEGRADED] == ["Healthy"]


UNSERVED = Condition(
    type=ConditionType.WEIGHTS_CONSISTENT,
    status=ConditionStatus.FALSE,
    reason="NoEngineHasCurrentWeights",
    message="none has them since 07:58:30",
)


def told_of_weights(item: Condition | None, *, synchronised: bool = True, serving: int = 2) -> Any:
    """Status of a pool where the loop says this of the weights, or said it before (None)."""
    seen = replace(
        observed(engines(Role.AGGREGATED, serving)), weights_url="http://w" if synchronised else ""
    )
    part = structure(seen, choice(TWO), Applying())
    report = AdmissionReport(conditions=(item,) if item is not None else ())
    return compose(part, report, stored=RolloutPoolStatus(conditions=[UNSERVED]), now="t")


def test_a_pool_without_an_engine_that_has_the_weights_is_not_ready() -> None:
    found = told_of_weights(UNSERVED)
    ready = next(item for item in found.conditions if item.type is ConditionType.READY)
    assert (ready.status, ready.reason) == (ConditionStatus.FALSE, "NoEngineHasCurrentWeights")
    assert ready.message == "WeightsConsistent: none has them since 07:58:30"
    assert (ready.observed_generation, found.phase) == (3, "Degraded")


def test_what_is_known_of_the_weights_outlives_the_operator() -> None:
    assert told_of_weights(None).phase == "Degraded"


@pytest.mark.parametrize("reason", ["StaleWeights", "SameWeights"])
def test_some_engines_with_the_weights_are_enough(reason: str) -> None:
    assert told_of_weights(UNSERVED.model_copy(update={"reason": reason})).phase == "Ready"


def test_without_synchronisation_nothing_is_said_of_weights() -> None:
    for item in (UNSERVED, None):
        found = told_of_weights(item, synchronised=False)
        assert found.phase == "Ready"
        assert ConditionType.WEIGHTS_CONSISTENT not in {item.type for item in found.conditions}


def test_another_reason_not_to_be_ready_goes_first() -> None:
    found = told_of_weights(UNSERVED, serving=1)
    ready = next(item for item in found.conditions if item.type is ConditionType.READY)
    assert (ready.reason, found.phase) == ("Progressing", "Progressing")


def test_the_summary_tells_of_requests_that_no_cap_holds() -> None:
    classes = [{"name": "a", "cap": 16, "active": 11, "waiting": 2, "held": 312, "ahead": 40}]
    admission = AdmissionStatus.model_validate(
        {"revision": 1, "policy": "MISA-T", "computedAt": "t", "classes": classes}
    )
    part = structure(observed(engines(Role.AGGREGATED, 2)), choice(TWO), Applying())
    report = AdmissionReport(admission=admission, mixture=MixtureStatus())
    found = compose(part, report, stored=RolloutPoolStatus(), now="t").summary.classes
    assert found[0].startswith(
        "a: 11 of 16 sessions in, 2 waiting (longest 0 s, held for the mixture), 312 requests held;"
    )


def test_long_messages_are_cut() -> None:
    got = conditions(observed(), choice(TWO, message="x" * 5000), Applying())
    assert len(got[ConditionType.PLAN_READY].message) == 1024
