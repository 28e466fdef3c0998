"""Reading a RolloutPool from YAML, with errors that name the line to change. Pure."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rolloutpool_api.v1alpha1 import InvalidPool, RolloutPool, parse_pool
from rolloutpool_operator.local.rules import broken_rules

_FIELD = re.compile(r"\b(spec|metadata)(\.\w+)*")
"""The field that a problem speaks of."""


class InvalidManifest(ValueError):
    """Text that holds no valid RolloutPool; the message lists lines and what to change in them."""


def parse_manifest(text: str) -> tuple[dict[str, Any], RolloutPool]:
    """Read the one RolloutPool of a manifest.

    Returns:
        The object as written, and as read.

    Raises:
        InvalidManifest: with one line per problem.
    """
    try:
        documents = [node for node in yaml.compose_all(text) if node is not None]
        bodies = [body for body in yaml.safe_load_all(text) if body is not None]
    except yaml.YAMLError as error:
        raise InvalidManifest(f"this is not YAML: {_one_line(error)}") from None
    except RecursionError:
        raise InvalidManifest("this is nested too deeply to be a manifest") from None
    pools = [
        (node, body)
        for node, body in zip(documents, bodies, strict=True)
        if isinstance(body, dict) and body.get("kind") == "RolloutPool"
    ]
    if len(pools) != 1:
        raise InvalidManifest(f"a manifest needs one object of kind RolloutPool, this has {len(pools)}")
    node, body = pools[0]
    if not isinstance(body.get("metadata"), dict) or not body["metadata"].get("name"):
        raise InvalidManifest("metadata.name is missing: give the pool a name")
    body.pop("status", None)
    try:
        pool = parse_pool(body)
        problems = broken_rules(pool.to_wire())
    except InvalidPool as error:
        problems = tuple(str(error).splitlines())
    if problems:
        raise InvalidManifest("\n".join(_with_line(problem, node) for problem in problems))
    return body, pool


def changed_immutable(old: RolloutPool, new: RolloutPool) -> str:
    """What the API server would refuse about a change; empty if nothing."""
    if (old.metadata.namespace, old.metadata.name) != (new.metadata.namespace, new.metadata.name):
        name = f"{old.metadata.namespace}/{old.metadata.name}"
        return f"metadata.name is immutable: set it back to {name}, or stop this pool and start another"
    return "; ".join(broken_rules(new.to_wire(), old.to_wire()))


def _with_line(problem: str, root: yaml.Node) -> str:
    named = _FIELD.search(problem)
    path = named[0].split(".") if named else []
    return f"line {_line_of(path, root)}: {problem}"


def _line_of(path: list[str], root: yaml.Node) -> int:
    """Line, from 1, of the deepest part of the path that the document has."""
    node, line = root, root.start_mark.line
    for part in path:
        found: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    found, line = value, key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            found = node.value[int(part)]
            line = found.start_mark.line
        if found is None:
            break
        node = found
    return int(line) + 1


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())
