"""Sessions and classes of requests: precedence, match rules, and what a refusal says."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from rolloutpool_api.workloads import FieldMatch, HeaderMatch, MatchRules, WorkloadSpec
from rolloutpool_router.core.identity import (
    repeated_class,
    repeated_session,
    rollout_class,
    session_id,
    unknown_model,
)
from rolloutpool_router.core.outcomes import Outcome, Refusal

WORKLOADS = {
    "rlvr": WorkloadSpec(name="rlvr", share=0.5, match=MatchRules(models=["math-lora"])),
    "rlhf": WorkloadSpec(
        name="rlhf", share=0.3, match=MatchRules(header=HeaderMatch(name="X-Job", value="dialog"))
    ),
    "agentic": WorkloadSpec(name="agentic", share=0.1, match=MatchRules(session_prefix="agent-")),
    "tools": WorkloadSpec(
        name="tools",
        share=0.05,
        match=MatchRules(body_field=FieldMatch(path="metadata.environment", value="7"), path_prefix="/tools"),
    ),
    "keyed": WorkloadSpec(
        name="keyed",
        share=0.05,
        match=MatchRules(api_key_sha256=[hashlib.sha256(b"secret").hexdigest()]),
    ),
}


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        pytest.param(
            {"x-session-id": "a", "x-correlation-id": "b"}, {"session_id": "c"}, "a", id="first-header"
        ),
        pytest.param({"x-smg-routing-key": "a", "x-correlation-id": "b"}, {}, "a", id="slime"),
        pytest.param({"x-correlation-id": "a", "x-dynamo-session-id": "b"}, {}, "a", id="aiperf"),
        pytest.param({"x-dynamo-session-id": "a", "session-id": "b"}, {}, "a", id="dynamo"),
        pytest.param({"x-claude-code-session-id": "a"}, {}, "a", id="claude-code"),
        pytest.param({"session-id": "a"}, {}, "a", id="codex"),
        pytest.param({"session_id": "a"}, {"session_id": "b"}, "a", id="header-before-body"),
        pytest.param({"x-session-affinity": "a"}, {}, "a", id="affinity"),
        pytest.param({"x-session-id": "  "}, {"session_id": "b"}, "b", id="blank-header-is-none"),
        pytest.param({}, {"session_id": "a", "prompt_cache_key": "b"}, "a", id="body"),
        pytest.param(
            {}, {"session_params": {"session_id": "a"}, "vllm_xargs": {"session_id": "b"}}, "a", id="params"
        ),
        pytest.param({}, {"vllm_xargs": {"session_id": "a"}, "program_id": "b"}, "a", id="xargs"),
        pytest.param({}, {"program_id": 7, "metadata": {"session_id": "b"}}, "7", id="number"),
        pytest.param({}, {"conversation_id": "a"}, "a", id="conversation"),
        pytest.param({}, {"metadata": {"session_id": "a"}, "prompt_cache_key": "b"}, "a", id="metadata"),
        pytest.param({}, {"prompt_cache_key": "a"}, "a", id="cache-key"),
        pytest.param(
            {"x-request-id": "a", "x-user-id": "b"}, {"user": "c"}, None, id="requests-and-users-are-not"
        ),
        pytest.param({}, {"session_id": {"x": 1}, "metadata": "text"}, None, id="odd-fields-are-not"),
        pytest.param({}, {"session_id": True}, None, id="a-truth-value-is-not"),
    ],
)
def test_the_session_is_the_first_that_is_named(
    headers: dict[str, str], body: dict[str, Any], expected: str | None
) -> None:
    assert session_id(headers, body) == expected


@pytest.mark.parametrize("value", [pytest.param("x" * 257, id="long"), pytest.param("a\x07b", id="control")])
def test_a_session_id_that_no_header_can_carry_is_refused(value: str) -> None:
    refusal = session_id({}, {"session_id": value})

    assert isinstance(refusal, Refusal)
    assert (refusal.outcome, refusal.http_status) == (Outcome.SESSION_INVALID, 400)


@pytest.mark.parametrize(
    ("headers", "body", "session", "expected"),
    [
        pytest.param(
            {"x-rollout-class": "rlhf"}, {"model": "math-lora"}, "agent-1", "rlhf", id="header-first"
        ),
        pytest.param({}, {"model": "math-lora"}, None, "rlvr", id="model"),
        pytest.param({"x-job": "dialog"}, {"model": "m"}, None, "rlhf", id="other-header"),
        pytest.param({"x-job": "other"}, {}, "agent-1", "agentic", id="session-prefix"),
        pytest.param({}, {"metadata": {"environment": "7"}}, None, "tools", id="body-field"),
        pytest.param({}, {"metadata": {"environment": 7}}, None, "tools", id="body-field-number"),
        pytest.param({"authorization": "Bearer secret"}, {}, None, "keyed", id="api-key"),
        pytest.param({"authorization": "bearer  secret"}, {}, None, "keyed", id="api-key-any-case"),
        pytest.param({"x-api-key": "secret"}, {}, None, "keyed", id="api-key-of-anthropic"),
    ],
)
def test_the_class_is_named_or_matched(
    headers: dict[str, str], body: dict[str, Any], session: str | None, expected: str
) -> None:
    found = rollout_class(headers, body, session=session, admitted_as=None, workloads=WORKLOADS)

    assert found == expected


def test_the_class_of_the_path_counts_as_named() -> None:
    def of_path(headers: dict[str, str], admitted_as: str | None = None) -> str | Refusal:
        return rollout_class(
            headers, {}, path_class="tools", session="agent-1", admitted_as=admitted_as, workloads=WORKLOADS
        )

    assert of_path({}) == "tools"
    assert of_path({"x-rollout-class": "rlvr"}) == "rlvr"
    changed = of_path({}, admitted_as="rlvr")
    assert isinstance(changed, Refusal)
    assert changed.outcome is Outcome.CLASS_CHANGED


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param({"authorization": "Basic secret"}, {}, id="other-scheme"),
        pytest.param({"authorization": "Bearer wrong"}, {}, id="wrong-key"),
        pytest.param({}, {"metadata": {"environment": True}}, id="truth-value"),
        pytest.param({}, {"metadata": ["environment"]}, id="no-object"),
    ],
)
def test_what_matches_no_rule_has_no_class(headers: dict[str, str], body: dict[str, Any]) -> None:
    found = rollout_class(headers, body, session=None, admitted_as=None, workloads=WORKLOADS)
    assert isinstance(found, Refusal)


def test_a_session_keeps_its_class() -> None:
    def again(headers: dict[str, str]) -> str | Refusal:
        return rollout_class(headers, {}, session="s", admitted_as="agentic", workloads=WORKLOADS)

    assert again({}) == "agentic"
    assert again({"x-rollout-class": "agentic"}) == "agentic"
    changed = again({"x-rollout-class": "rlvr"})
    assert isinstance(changed, Refusal)
    assert changed.outcome is Outcome.CLASS_CHANGED
    assert "admitted as class 'agentic'" in changed.message


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        pytest.param({}, Outcome.CLASS_MISSING, id="none"),
        pytest.param({"x-rollout-class": "sft"}, Outcome.CLASS_UNKNOWN, id="unknown"),
    ],
)
def test_a_refusal_lists_the_classes(headers: dict[str, str], outcome: Outcome) -> None:
    refusal = rollout_class(headers, {}, session=None, admitted_as=None, workloads=WORKLOADS)

    assert isinstance(refusal, Refusal)
    assert refusal.outcome is outcome
    assert "rlvr, rlhf, agentic" in refusal.message


def test_a_pool_with_one_class_needs_no_name_for_it() -> None:
    only = {"rlvr": WorkloadSpec(name="rlvr", share=1)}

    assert rollout_class({}, {}, session=None, admitted_as=None, workloads=only) == "rlvr"


def test_an_unknown_model_is_refused_with_those_that_are_served() -> None:
    assert unknown_model({"model": "m"}, ["m", "lora"]) is None
    assert unknown_model({}, ["m"]) is None
    refusal = unknown_model({"model": "gpt"}, ["m", "lora"])
    assert refusal is not None
    assert (refusal.http_status, refusal.outcome) == (404, Outcome.MODEL_UNKNOWN)
    assert "m, lora" in refusal.message


def test_a_class_that_is_named_twice_is_refused() -> None:
    refusal = repeated_class(["x-other", "x-rollout-class"])
    assert refusal is not None
    assert refusal.outcome is Outcome.CLASS_UNKNOWN
    assert "x-rollout-class comes more than once" in refusal.message
    assert repeated_class(["x-other", "x-session-id"]) is None
    assert repeated_session(["x-rollout-class"]) is None
