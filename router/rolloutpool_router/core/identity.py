"""Whose request is it: the session and the class, from headers and body.

No RL framework names a class, so it may also follow from the model, a header or the session's name
(`spec.workloads[].match`). Headers arrive with lower-case names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rolloutpool_api.workloads import WorkloadSpec
from rolloutpool_router.core.outcomes import Outcome, Refusal

CLASS_HEADER = "x-rollout-class"
"""Names the class; goes before the match rules."""

SESSION_HEADERS = (
    "x-session-id",
    "x-smg-routing-key",
    "x-correlation-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
)
"""Headers that name a session, the first that is present counts: vLLM and trainers, slime, aiperf, Dynamo,
Claude Code, Codex. Request ids and user ids are left out on purpose: they name something else."""

SESSION_FIELDS: tuple[tuple[str, ...], ...] = (
    ("session_id",),
    ("session_params", "session_id"),
    ("vllm_xargs", "session_id"),
    ("program_id",),
    ("conversation_id",),
    ("metadata", "session_id"),
    ("prompt_cache_key",),
)
"""Body fields that name a session, after the headers, the first that is present counts."""

MAX_SESSION_ID = 256
"""Longest session id, in characters."""


def session_id(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | Refusal | None:
    """The session that a request names, None where it names none."""
    for name in SESSION_HEADERS:
        if value := headers.get(name, "").strip():
            return _checked(value, name)
    for path in SESSION_FIELDS:
        found = _field(body, path)
        if isinstance(found, (str, int)) and not isinstance(found, bool) and str(found).strip():
            return _checked(str(found).strip(), ".".join(path))
    return None


def rollout_class(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    session: str | None,
    admitted_as: str | None,
    workloads: Mapping[str, WorkloadSpec],
) -> str | Refusal:
    """The class of a request.

    Args:
        headers: with lower-case names.
        body: the parsed body.
        session: the session that the request names.
        admitted_as: class of that session, where it is known already; it stays that for its whole life.
        workloads: the classes of the spec, by name.
    """
    named = headers.get(CLASS_HEADER, "").strip()
    if named and named not in workloads:
        return Refusal(
            Outcome.CLASS_UNKNOWN,
            f"no class {named[:64]!r} in this pool; set X-Rollout-Class to one of: {', '.join(workloads)}",
            CLASS_HEADER,
        )
    if admitted_as is not None and admitted_as in workloads:
        if named and named != admitted_as:
            return Refusal(
                Outcome.CLASS_CHANGED,
                f"session {session!r} was admitted as class {admitted_as!r} and this request says {named!r}: "
                "send the same X-Rollout-Class for the whole session, or start another session",
                CLASS_HEADER,
            )
        return admitted_as
    return named or _matched(headers, body, session, workloads)


def unknown_model(body: Mapping[str, Any], models: Iterable[str]) -> Refusal | None:
    """A refusal where the body names a model that the pool does not serve; a body may name none."""
    model = body.get("model")
    served = list(models)
    if model is None or model in served:
        return None
    return Refusal(
        Outcome.MODEL_UNKNOWN,
        f"The model {str(model)[:128]!r} does not exist in this pool; it serves: {', '.join(served)}",
        "model",
    )


def has_history(body: Mapping[str, Any]) -> bool:
    """Whether a chat holds an earlier answer: an assistant or tool message. Completions cannot tell."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return False
    return any(isinstance(m, dict) and m.get("role") in ("assistant", "tool", "function") for m in messages)


def _matched(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    session: str | None,
    workloads: Mapping[str, WorkloadSpec],
) -> str | Refusal:
    if len(workloads) == 1:
        return next(iter(workloads))
    for name, workload in workloads.items():
        rules = workload.match
        if rules.header is not None and headers.get(rules.header.name.lower()) == rules.header.value:
            return name
        if body.get("model") in rules.models:
            return name
        if rules.session_prefix is not None and (session or "").startswith(rules.session_prefix):
            return name
    return Refusal(
        Outcome.CLASS_MISSING,
        f"the request names no rollout class: set header X-Rollout-Class to one of: {', '.join(workloads)} "
        "(or give the class a match rule in spec.workloads[].match)",
        CLASS_HEADER,
    )


def _checked(value: str, where: str) -> str | Refusal:
    if len(value) > MAX_SESSION_ID:
        return Refusal(
            Outcome.SESSION_INVALID,
            f"the session id in {where} has {len(value)} characters: send at most {MAX_SESSION_ID}",
            where,
        )
    if not value.isprintable():
        return Refusal(
            Outcome.SESSION_INVALID,
            f"the session id in {where} has control characters or is no UTF-8: send printable text",
            where,
        )
    return value


def _field(body: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = body
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
