"""Dotted paths into YAML: reading, replacing, and finding the line. Pure.

A path names the keys on the way down; an item of a list is named by its `name` or its index from 0:
`admission.windowSeconds`, `workloads.rlvr.outputTokens`, `events.0.at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml


class InvalidPath(ValueError):
    """A path that leads nowhere; the message says which part and what there is instead."""


def get_path(tree: Any, path: str) -> Any:
    """Look up a value.

    Raises:
        InvalidPath: there is nothing at the path.
    """
    for index, part in enumerate(path.split(".")):
        if isinstance(tree, dict) and part not in tree:
            raise InvalidPath(_nothing(path, index, [str(key) for key in tree]))
        tree = tree[part] if isinstance(tree, dict) else tree[_item(tree, path, index)]
    return tree


def set_path(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the tree with another value at the path; mappings on the way are made where missing.

    Raises:
        InvalidPath: the path leads through a list that has no such item, or through a plain value.
    """
    replaced: dict[str, Any] = _replace(tree, path, 0, value)
    return replaced


def _replace(tree: Any, path: str, index: int, value: Any) -> Any:
    parts = path.split(".")
    if index == len(parts):
        return value
    if tree is None:
        tree = {}
    if isinstance(tree, dict):
        below = _replace(tree.get(parts[index]), path, index + 1, value)
        return {**tree, parts[index]: below}
    item = _item(tree, path, index)
    return [
        _replace(old, path, index + 1, value) if number == item else old for number, old in enumerate(tree)
    ]


def _item(tree: Any, path: str, index: int) -> int:
    """The index in a list that a part of the path means."""
    part = path.split(".")[index]
    if not isinstance(tree, list):
        raise InvalidPath(_nothing(path, index, []))
    names = [str(item.get("name", "")) if isinstance(item, dict) else "" for item in tree]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(tree):
        return int(part)
    known = [name for name in names if name] or [str(number) for number in range(len(tree))]
    raise InvalidPath(_nothing(path, index, known))


def _nothing(path: str, index: int, known: Sequence[str]) -> str:
    parts = path.split(".")
    within = f"{'.'.join(parts[:index])} has" if index else "there is"
    there = f"; there {'are' if len(known) > 1 else 'is'} {', '.join(known)}" if known else ""
    return f"{path}: {within} no {parts[index]!r}{there}"


def line_of(root: yaml.Node | None, parts: Sequence[str | int]) -> int:
    """Line, from 1, of the deepest of these parts that a YAML document has.

    Args:
        root: the document, as `yaml.compose` returns it.
        parts: keys, item names or indices on the way down.
    """
    node, line = root, root.start_mark.line if root else 0
    for part in parts:
        found = _child(node, str(part))
        if found is None:
            break
        node, line = found
    return line + 1


def _child(node: yaml.Node | None, part: str) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return value, key.start_mark.line
        return None
    if not isinstance(node, yaml.SequenceNode):
        return None
    for number, item in enumerate(node.value):
        named = _child(item, "name")
        if part == str(number) or (named is not None and named[0].value == part):
            return item, item.start_mark.line
    return None
