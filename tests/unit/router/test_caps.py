"""Admission caps: the equations of each policy, floors, and that no quota exceeds the protected blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_api.serving import AdmissionPolicy
from rolloutpool_router.core.caps import UNLIMITED, CapInputs, ClassDemand, compute_caps

RLVR = ClassDemand("rlvr", share=0.5, sessions=40, footprint_blocks=10, residency_seconds=60)
RLHF = ClassDemand("rlhf", share=0.3, sessions=20, footprint_blocks=5, residency_seconds=10)
AGENTIC = ClassDemand("agentic", share=0.2, sessions=10, footprint_blocks=40, residency_seconds=300)


def inputs(
    *classes: ClassDemand, blocks: int = 1000, floor: int = 1, feasible_floors: bool = True
) -> CapInputs:
    return CapInputs(blocks, floor, feasible_floors, classes)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # R = NkT: 24000, 1000, 120000; C R / sum R = 165.5, 6.9, 827.6
        pytest.param(AdmissionPolicy.MISA_T, {"rlvr": 16, "rlhf": 1, "agentic": 20}, id="misa-t"),
        # R = Nk: 400, 100, 400
        pytest.param(AdmissionPolicy.MISA, {"rlvr": 44, "rlhf": 22, "agentic": 11}, id="misa-without-time"),
        pytest.param(AdmissionPolicy.STATIC, {"rlvr": 50, "rlhf": 60, "agentic": 5}, id="static-by-share"),
        # mean footprint (400 + 100 + 400) / 70
        pytest.param(
            AdmissionPolicy.SESSION, {"rlvr": 77, "rlhf": 77, "agentic": 77}, id="session-class-blind"
        ),
        pytest.param(
            AdmissionPolicy.NONE, {"rlvr": UNLIMITED, "rlhf": UNLIMITED, "agentic": UNLIMITED}, id="none"
        ),
    ],
)
def test_each_policy_divides_the_blocks_by_its_equation(
    policy: AdmissionPolicy, expected: dict[str, int]
) -> None:
    result = compute_caps(policy, inputs(RLVR, RLHF, AGENTIC))

    assert dict(result.caps) == expected
    assert result.floors_fit
    assert result.class_blind == (policy is AdmissionPolicy.SESSION)


def test_shares_of_the_demand_are_in_block_seconds() -> None:
    result = compute_caps(AdmissionPolicy.MISA_T, inputs(RLVR, RLHF, AGENTIC))

    assert result.block_second_share == pytest.approx(
        {"rlvr": 24000 / 145000, "rlhf": 1000 / 145000, "agentic": 120000 / 145000}
    )


def test_a_class_without_demand_gets_its_floor_and_the_rest_is_shared() -> None:
    idle = replace(AGENTIC, sessions=0)

    result = compute_caps(AdmissionPolicy.MISA_T, inputs(RLVR, idle, floor=2))

    assert dict(result.caps) == {"rlvr": (1000 - 2 * 40) // 10, "agentic": 2}


def test_without_any_demand_sessions_are_taken_to_come_by_share() -> None:
    classes = [replace(c, sessions=0) for c in (RLVR, RLHF, AGENTIC)]
    by_share = [replace(c, sessions=c.share) for c in (RLVR, RLHF, AGENTIC)]

    empty = compute_caps(AdmissionPolicy.MISA_T, inputs(*classes))

    assert dict(empty.caps) == dict(compute_caps(AdmissionPolicy.MISA_T, inputs(*by_share)).caps)
    assert set(empty.block_second_share.values()) == {0.0}


@pytest.mark.parametrize(
    ("blocks", "debts", "expected"),
    [
        pytest.param(45, (0, 0), {"rlvr": 4, "agentic": 0}, id="larger-share-first"),
        pytest.param(45, (0, 5), {"rlvr": 0, "agentic": 1}, id="class-behind-first"),
        pytest.param(5, (0, 0), {"rlvr": 1, "agentic": 0}, id="too-small-for-anyone-still-runs-one"),
        pytest.param(75, (0, 0), {"rlvr": 3, "agentic": 1}, id="one-each-before-seconds"),
    ],
)
def test_floors_that_do_not_all_fit_go_round_by_debt_then_share(
    blocks: int, debts: tuple[float, float], expected: dict[str, int]
) -> None:
    rlvr, agentic = replace(RLVR, debt=debts[0]), replace(AGENTIC, debt=debts[1])

    result = compute_caps(AdmissionPolicy.MISA_T, inputs(rlvr, agentic, blocks=blocks, floor=4))

    assert dict(result.caps) == expected
    assert not result.floors_fit


def test_the_papers_floors_may_exceed_the_blocks() -> None:
    """max(1, K) for every class, whatever fits: the switch feasibleFloors off."""
    tight = compute_caps(AdmissionPolicy.MISA_T, inputs(RLVR, AGENTIC, blocks=45, feasible_floors=False))
    ample = compute_caps(AdmissionPolicy.MISA_T, inputs(RLVR, RLHF, AGENTIC, feasible_floors=False))

    assert dict(tight.caps) == {"rlvr": 1, "agentic": 1}
    assert not tight.floors_fit
    # C R / sum R = 165.5, 6.9, 827.6 blocks: the floor of a class takes nothing from the others' quotas
    assert dict(ample.caps) == {"rlvr": 16, "rlhf": 1, "agentic": 20}


def test_a_floor_that_is_granted_comes_from_the_quotas_of_the_others() -> None:
    small = replace(AGENTIC, sessions=0.01)

    papers = compute_caps(AdmissionPolicy.MISA_T, inputs(RLVR, small, feasible_floors=False))
    ours = compute_caps(AdmissionPolicy.MISA_T, inputs(RLVR, small))

    assert dict(papers.caps) == {"rlvr": 99, "agentic": 1}, "1,030 blocks"
    assert dict(ours.caps) == {"rlvr": 96, "agentic": 1}


def drain_seconds(policy: AdmissionPolicy, *classes: ClassDemand) -> list[float]:
    """Time for N sessions of T seconds to go through K places, each at the same speed: N T / K."""
    caps = compute_caps(policy, inputs(*classes, blocks=10**6)).caps
    return [c.sessions * c.residency_seconds / caps[c.name] for c in classes]


def test_quotas_balance_drain_times_where_the_rate_of_a_class_is_proportional_to_its_quota() -> None:
    """The paper's claim and its condition. K = C N T / sum R, so every class drains in sum R / C."""
    assert drain_seconds(AdmissionPolicy.MISA_T, RLVR, RLHF, AGENTIC) == pytest.approx([0.145] * 3, rel=0.01)


def test_without_time_classes_of_long_sessions_drain_last() -> None:
    rlvr, rlhf, agentic = drain_seconds(AdmissionPolicy.MISA, RLVR, RLHF, AGENTIC)

    assert (rlvr / rlhf, agentic / rlhf) == pytest.approx((6, 30), rel=0.01)


demands = st.builds(
    ClassDemand,
    name=st.just(""),
    share=st.floats(0.01, 1),
    sessions=st.one_of(st.just(0.0), st.floats(0, 1e4)),
    footprint_blocks=st.floats(0, 1e4),
    residency_seconds=st.floats(0, 1e5),
    debt=st.floats(-100, 100),
)
class_lists = st.lists(demands, min_size=1, max_size=8).map(
    lambda many: tuple(replace(one, name=f"c{i}") for i, one in enumerate(many))
)


@given(
    classes=class_lists,
    blocks=st.integers(0, 100_000),
    floor=st.integers(1, 20),
    policy=st.sampled_from([AdmissionPolicy.MISA_T, AdmissionPolicy.MISA, AdmissionPolicy.STATIC]),
)
def test_quotas_fit_the_protected_blocks_and_somebody_may_always_enter(
    classes: tuple[ClassDemand, ...], blocks: int, floor: int, policy: AdmissionPolicy
) -> None:
    result = compute_caps(policy, CapInputs(blocks, floor, True, classes))

    used = sum(result.caps[c.name] * max(1.0, c.footprint_blocks) for c in classes)
    alone = sum(result.caps.values()) == 1
    assert used <= blocks + 1e-3 or alone
    assert sum(result.caps.values()) >= 1
    assert not result.floors_fit or min(result.caps.values()) >= floor
