"""Whose request is it: the session and the class, from headers and body.

No RL framework names a class, so it may also follow from the model, a header or the session's name
(`spec.workloads[].match`). Headers arrive with lower-case names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rolloutpool_api.workloads import FieldMatch, WorkloadSpec
from rolloutpool_router.core.outcomes import Outcome, Refusal

CLASS_HEADER = "x-rollout-class"
"""Names the class; goes before the match rules."""

SESSION_HEADERS = (
    "x-session-id",
    "x-smg-routing-key",
    "x-correlation-id",
    "x-dynamo-session-id",
    "x-dynamo-trajectory-id",
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

_SESSION_HEADERS = frozenset(SESSION_HEADERS)
_SESSION_FIELDS = frozenset(path[0] for path in SESSION_FIELDS)
MAX_SESSION_ID = 256
"""Longest session id, in characters."""


def session_id(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | Refusal | None:
    """The session that a request names, None where it names none."""
    named = session_in_headers(headers)
    return named if named is not None else session_in_body(body)


def repeated_session(names: Sequence[str]) -> Refusal | None:
    """A refusal where a header that names a session comes more than once: nobody can tell which one is meant.

    Args:
        names: of the request's headers that come more than once, in lower case.
    """
    for name in names:
        if name in _SESSION_HEADERS:
            message = f"the header {name} comes more than once: send it once, with one session id"
            return Refusal(Outcome.SESSION_INVALID, message, name)
    return None


def repeated_class(names: Sequence[str]) -> Refusal | None:
    """A refusal where the header that names the class comes more than once.

    Args:
        names: of the request's headers that come more than once, in lower case.
    """
    if CLASS_HEADER not in names:
        return None
    message = f"the header {CLASS_HEADER} comes more than once: send it once, with one class"
    return Refusal(Outcome.CLASS_UNKNOWN, message, CLASS_HEADER)


def session_in_headers(headers: Mapping[str, str]) -> str | Refusal | None:
    """The session that a request's headers name; they go before its body."""
    named = () if _SESSION_HEADERS.isdisjoint(headers) else SESSION_HEADERS
    for name in named:
        if value := headers.get(name, "").strip():
            return checked_session(value, name)
    return None


def session_in_body(body: Mapping[str, Any]) -> str | Refusal | None:
    """The session that a request's body names."""
    fields = () if _SESSION_FIELDS.isdisjoint(body) else SESSION_FIELDS
    for path in fields:
        found = _field(body, path)
        if isinstance(found, (str, int)) and not isinstance(found, bool) and str(found).strip():
            return checked_session(str(found).strip(), ".".join(path))
    return None


def rollout_class(
    headers: Mapping[str, str],
    body: Mapping[str, Any],
    *,
    path_class: str | None = None,
    session: str | None,
    admitted_as: str | None,
    workloads: Mapping[str, WorkloadSpec],
) -> str | Refusal:
    """The class of a request.

    Args:
        headers: with lower-case names.
        body: the parsed body.
        path_class: the class whose path prefix the request has.
        session: the session that the request names.
        admitted_as: class of that session, where it is known already; it stays that for its whole life.
        workloads: the classes of the spec, by name.
    """
    named = headers.get(CLASS_HEADER, "").strip() or path_class or ""
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


def unknown_model(body: Mapping[str, Any], models: Collection[str]) -> Refusal | None:
    """A refusal where the body names a model that the pool does not serve; a body may name none."""
    model = body.get("model")
    if model is None or model in models:
        return None
    return Refusal(
        Outcome.MODEL_UNKNOWN,
        f"The model {str(model)[:128]!r} does not exist in this pool; it serves: {', '.join(models)}",
        "model",
    )


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
        if rules.body_field is not None and _has(body, rules.body_field):
            return name
        if rules.api_key_sha256 and api_key_sha256(headers) in rules.api_key_sha256:
            return name
    return Refusal(
        Outcome.CLASS_MISSING,
        f"the request names no rollout class: set header X-Rollout-Class to one of: {', '.join(workloads)} "
        "(or give the class a match rule in spec.workloads[].match)",
        CLASS_HEADER,
    )


def _has(body: Mapping[str, Any], rule: FieldMatch) -> bool:
    found = _field(body, tuple(rule.path.split(".")))
    return isinstance(found, (str, int, float)) and not isinstance(found, bool) and str(found) == rule.value


def api_key_sha256(headers: Mapping[str, str]) -> str | None:
    """Digest of a request's API key, in hex; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    key = key.strip() if scheme.lower() == "bearer" else ""
    key = key or headers.get("x-api-key", "")
    return hashlib.sha256(key.encode(errors="replace")).hexdigest() if key else None


def checked_session(value: str, where: str) -> str | Refusal:
    """A session id that was found in a request; a Refusal if it cannot be one.

    Args:
        value: as found.
        where: the header or field that holds it.
    """
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
        if value is not body and not isinstance(value, dict):
            return None
        value = value.get(key)
    return value
