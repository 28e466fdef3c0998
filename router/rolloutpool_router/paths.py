"""What a request's path says: what is asked for, the session or class that it names, the engine's path."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple
from urllib.parse import unquote

SESSIONS = "/sessions/"
"""`/sessions/{id}/v1/...`: the session in the path, for agents that can only be given a base URL.

A class's prefix may come before it or after.
"""

GENERATIONS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/inference/v1/generate",
    }
)
"""Paths that make an engine generate: these pass admission."""
ANY_ENGINE = frozenset(
    {
        "/tokenize",
        "/detokenize",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/count_tokens",
    }
)
"""Paths that any engine answers, without holding KV: these do not wait."""
FINISH_SESSION = "/finish_session"
POST_ONLY = GENERATIONS | ANY_ENGINE | {FINISH_SESSION}


class Kind(Enum):
    """Who answers a request."""

    GENERATE = "generate"
    ANY_ENGINE = "any engine"
    FINISH = "finish"
    WRONG_METHOD = "wrong method"
    """Nobody: the path takes POST only."""
    ADMIN = "admin"
    """The router itself: everything else."""


class Target(NamedTuple):
    """A request's target, taken apart."""

    kind: Kind
    path: str
    """Path and query for the engine, without what the router takes out of it."""
    session: str | None = None
    """The session that the path names."""
    class_name: str | None = None
    """The class that the path names."""


_PLAIN = {path: Target(Kind.GENERATE, path) for path in GENERATIONS}
"""What most requests ask for, taken apart beforehand."""


def read_target(method: str, path: str, query: str, prefixes: Mapping[str, str]) -> Target:
    """Take a target apart.

    Args:
        method: of the request.
        path: as on the wire, without the query.
        query: without its question mark.
        prefixes: class by path prefix (`spec.workloads[].match.pathPrefix`).
    """
    if not prefixes and not query and method == "POST" and path in _PLAIN:
        return _PLAIN[path]
    class_name, path = _class_in(path, prefixes)
    session = None
    if path.startswith(SESSIONS):
        named, slash, rest = path.removeprefix(SESSIONS).partition("/")
        if named and slash:
            session, path = unquote(named, errors="replace"), "/" + rest
            if class_name is None:
                class_name, path = _class_in(path, prefixes)
    kind = _kind(method, path)
    return Target(kind, f"{path}?{query}" if query else path, session, class_name)


def _class_in(path: str, prefixes: Mapping[str, str]) -> tuple[str | None, str]:
    """The class whose prefix a path has, and the path without it."""
    for prefix, name in prefixes.items():
        if path.startswith(prefix + "/"):
            return name, path.removeprefix(prefix)
    return None, path


def _kind(method: str, path: str) -> Kind:
    if method != "POST":
        return Kind.WRONG_METHOD if path in POST_ONLY else Kind.ADMIN
    if path in GENERATIONS:
        return Kind.GENERATE
    if path in ANY_ENGINE:
        return Kind.ANY_ENGINE
    return Kind.FINISH if path == FINISH_SESSION else Kind.ADMIN
