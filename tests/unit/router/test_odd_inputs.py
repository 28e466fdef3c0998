"""What nobody means to send: answers that lie, enormous prompts, overlapping turns, other blocks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_router.core.admission import EntryReason
from rolloutpool_router.core.controller import AdmissionController
from rolloutpool_router.core.grants import own_part
from rolloutpool_router.core.ledger import LOOK_SECONDS, LOOK_TICKS, PRIOR_PACE
from rolloutpool_router.core.requests import Entered, Queued
from rolloutpool_router.core.sessions import Usage
from rolloutpool_router.testing import pool_object
from rolloutpool_router.usage import MOST_TOKENS, UsageReader
from rolloutpool_testkit.admission import BLOCK, ONE, apply, arrive, controller_of, enter, names

AGENTIC = [{"name": "agentic", "share": 1.0, "sessionIdleSeconds": 300}]
BLOCKS = 100_000


def one_class(*, blocks: int = BLOCKS) -> AdmissionController:
    return controller_of(pool_object(ONE, caps={"agentic": 1000}, workloads=AGENTIC, blocks=blocks))


def told(answer: bytes) -> Usage:
    reader = UsageReader(100)
    reader.feed(answer)
    return reader.usage()


class TestAnAnswerThatLies:
    @pytest.mark.parametrize(
        ("answer", "usage"),
        [
            pytest.param(
                b'{"usage": {"prompt_tokens": 1' + b"0" * 400 + b', "completion_tokens": 7}}',
                Usage(MOST_TOKENS, 7),
                id="more-than-a-float-holds",
            ),
            pytest.param(b'{"usage": {"prompt_tokens": -5}}', Usage(0, 0), id="negative"),
            pytest.param(
                b'{"usage": {"a": ' + b"[" * 1900 + b"}", Usage(25, 479, estimated=True), id="nested-too-deep"
            ),
        ],
    )
    def test_is_believed_within_bounds(self, answer: bytes, usage: Usage) -> None:
        assert told(answer) == usage

    def test_about_its_tokens_costs_the_others_nothing_once_it_is_gone(self) -> None:
        controller = one_class()
        enter(controller, "liar", "agentic", prompt_tokens=1600)
        controller.end_turn("liar", now=1, ok=True, usage=Usage(MOST_TOKENS, MOST_TOKENS))
        controller.tick(1)
        assert isinstance(arrive(controller, "other", "agentic", now=1, prompt_tokens=1600), Queued)
        controller.finish("liar", 2)

        assert names(controller.admit_waiting(2)) == ["other"]
        controller.end_turn("other", now=3, ok=True)
        controller.finish("other", 3)
        enter(controller, "s1", "agentic", now=3, prompt_tokens=1600)
        enter(controller, "s2", "agentic", now=3, prompt_tokens=1600)

    def test_of_more_cached_tokens_than_there_were_is_no_pressure(self) -> None:
        controller = one_class()
        for turn in range(20):
            arrive(controller, "s", "agentic", now=turn, prompt_tokens=1600)
            controller.end_turn("s", now=turn + 0.5, ok=True, usage=Usage(1600, 160, 10**9))
            controller.tick(turn + 0.5)
        assert controller.retention.factor("e0") == 1.0


def test_an_enormous_prompt_counts_as_the_longest_that_an_engine_can_take() -> None:
    controller = one_class()
    enter(controller, "huge", "agentic", prompt_tokens=16 * 2**20)
    assert controller.ledger.engine("e0").held == BLOCKS

    body = pool_object(ONE, caps={"agentic": 1000}, workloads=AGENTIC, blocks=BLOCKS)
    body["spec"]["model"]["maxModelLen"] = 32_000
    controller = controller_of(body)
    enter(controller, "huge", "agentic", prompt_tokens=16 * 2**20)
    assert controller.ledger.engine("e0").held == 32_000 / BLOCK


def test_turns_that_overlap_or_take_no_time_say_nothing_of_the_pace() -> None:
    controller = one_class()
    enter(controller, "s", "agentic", prompt_tokens=1600)
    arrive(controller, "s", "agentic", now=100, prompt_tokens=1600)
    for now in (100.001, 100.002):
        controller.end_turn("s", now=now, ok=True, usage=Usage(1600, 3300))
    assert controller.ledger.engine("e0").pace == PRIOR_PACE

    arrive(controller, "s", "agentic", now=150, prompt_tokens=1600)
    controller.end_turn("s", now=150 + 1e-12, ok=True, usage=Usage(1600, 3300))
    assert controller.ledger.engine("e0").pace == PRIOR_PACE

    arrive(controller, "s", "agentic", now=200, prompt_tokens=5000)
    controller.end_turn("s", now=210, ok=True, usage=Usage(5000, 1000))
    assert controller.ledger.engine("e0").pace > PRIOR_PACE


def test_blocks_of_another_size_are_counted_anew() -> None:
    body = pool_object(ONE, caps={"agentic": 1000}, workloads=AGENTIC, blocks=BLOCKS)
    controller = controller_of(body)
    for number in range(200):
        enter(controller, f"s{number}", "agentic", now=number, prompt_tokens=6400)
        controller.end_turn(f"s{number}", now=number + 0.5, ok=True, usage=Usage(6400, 640))
        controller.finish(f"s{number}", number + 0.5)
    enter(controller, "resident", "agentic", now=200, prompt_tokens=6400)
    controller.tick(200)
    before = controller.ledger.classes["agentic"].cost.footprint_blocks

    body["spec"]["engine"] = {**body["spec"].get("engine", {}), "blockSize": 4 * BLOCK}
    body["metadata"]["generation"] += 1
    apply(controller, body)
    controller.tick(201)

    assert before > 300
    assert controller.ledger.classes["agentic"].cost.footprint_blocks < before / 3
    assert controller.table.tally("e0")["agentic"].blocks == pytest.approx(6400 / (4 * BLOCK), rel=0.05)


def test_residents_are_looked_at_no_more_often_than_needed() -> None:
    controller = one_class()
    for number in range(30):
        enter(controller, f"s{number}", "agentic", prompt_tokens=160)
    for tick in range(1, 1 + 4 * LOOK_TICKS):
        controller.tick(tick * LOOK_SECONDS / 4)

    looked = [session for session in controller.table if session.seen_at > 0]
    assert 0 < len(looked) <= 30
    assert len({session.seen_at for session in looked}) == LOOK_TICKS


class TestNobodyWaitsForEver:
    def test_one_that_is_larger_than_its_routers_part_of_every_engine(self) -> None:
        body = pool_object(
            ONE, caps={"agentic": 10}, workloads=AGENTIC, admission={"starvationSeconds": 60}, blocks=1000
        )
        admission: dict[str, Any] = body["status"]["admission"]
        admission["routers"] = [{"name": name, "url": f"http://{name}"} for name in ("r0", "r1")]
        admission["classes"] = [{"name": "agentic", "cap": 10, "active": 0, "waiting": 0}]
        admission["engines"][0]["grants"] = ["500 5", "500 5"]
        controller = AdmissionController(Random(1))
        controller.apply(own_part(parse_pool(body), "r0"), {})
        enter(controller, "small", "agentic", prompt_tokens=160)
        arrive(controller, "large", "agentic", now=1, prompt_tokens=700 * BLOCK)
        arrive(controller, "behind", "agentic", now=2, prompt_tokens=160)
        controller.end_turn("small", now=3, ok=True)
        controller.finish("small", 3)

        assert not controller.tick(4).entered
        entered = controller.tick(61).entered
        assert names(entered) == ["large"]
        controller.end_turn("large", now=62, ok=True)
        controller.finish("large", 62)
        assert names(controller.admit_waiting(62)) == ["behind"]

    def test_a_class_that_is_ahead_while_another_has_a_session_that_stays(self) -> None:
        workloads = [
            {"name": "rlvr", "share": 0.5},
            {"name": "agentic", "share": 0.5, "sessionIdleSeconds": 86_400},
        ]
        controller = controller_of(
            pool_object(
                ONE,
                caps={"rlvr": 100, "agentic": 100},
                workloads=workloads,
                admission={"chanceConstraint": False, "starvationSeconds": 60},
                blocks=BLOCKS,
            )
        )
        enter(controller, "stays", "agentic", prompt_tokens=160)  # Its answer never ends.
        answers: list[object] = [Entered("", "", "")]
        while isinstance(answers[-1], Entered):
            session = f"s{len(answers)}"
            answers.append(arrive(controller, session, now=1, prompt_tokens=160))
            controller.end_turn(session, now=1, ok=True)

        assert not controller.tick(2).entered
        (entry,) = controller.tick(62).entered
        assert (entry.class_name, entry.reason) == ("rlvr", EntryReason.ROOM)
