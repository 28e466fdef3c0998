"""Reading an experiment file, with errors that name the line, the field and what to write there. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rolloutpool_cli.simulate.experiment import Experiment
from rolloutpool_cli.simulate.paths import line_of

_NAMED = re.compile(r"^([a-z]\w*(?:\.\w+)*): (.*)$")
"""A rule over several fields says first which field it speaks of."""
COMMAND_LINE = "--set"
"""First part of the location of what was given there, not in the file."""
MAX_SHOWN = 60
"""Characters of a wrong value that are repeated."""
Location = Sequence[str | int]


class InvalidExperiment(ValueError):
    """A file that holds no valid experiment; the message has one line per problem."""


class Source:
    """The text of an experiment file, to say where a problem is."""

    def __init__(self, name: str, text: str) -> None:
        """Remember a file.

        Args:
            name: how the user calls it.
            text: what is in it.

        Raises:
            InvalidExperiment: the text is not YAML, or nested too deeply.
        """
        self.name = name
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            self.body = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InvalidExperiment(f"{name}: this is not YAML: {' '.join(str(error).split())}") from None
        except RecursionError:
            raise InvalidExperiment(f"{name}: this is nested too deeply to be an experiment") from None

    def problem(self, location: Location, message: str) -> str:
        """One line about the part of the file at a location."""
        where = ".".join(str(part) for part in location)
        if location and location[0] == COMMAND_LINE:
            return f"{where.replace('.', ' ', 1)}: {message}"
        return f"{self.name}:{line_of(self._root, location)}: {where + ': ' if where else ''}{message}"


def parse_experiment(source: Source) -> Experiment:
    """Read an experiment.

    Raises:
        InvalidExperiment: with one line per problem.
    """
    if not isinstance(source.body, dict):
        raise InvalidExperiment(
            f"{source.name}: an experiment needs name, description, scenario, variants and compare"
        )
    try:
        return Experiment.model_validate(source.body)
    except ValidationError as error:
        raise InvalidExperiment(
            "\n".join(source.problem(location, message) for location, message in problems(error, Experiment))
        ) from None


def problems(error: ValidationError, model: type[BaseModel]) -> list[tuple[Location, str]]:
    """Where in the input each problem is, and what to write instead.

    Args:
        error: what Pydantic found.
        model: the model that it read.
    """
    schema = _schema(model)
    found: list[tuple[Location, str]] = []
    for item in error.errors(include_url=False):
        location: Location = item["loc"]
        message = str(item["msg"]).removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            found.append((location, _unknown_field(schema, location)))
        elif item["type"] == "missing":
            found.append((location, "is missing: add it"))
        elif item["type"] == "value_error":
            found += [_named(location, line) for line in message.splitlines()]
        else:
            found.append((location, f"{message} (it is {_shown(item.get('input'))})"))
    return found


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _named(location: Location, message: str) -> tuple[Location, str]:
    """A rule's message, at the field below the location that it names."""
    named = _NAMED.match(message)
    if named is None:
        return location, message
    below = [int(part) if part.isdigit() else part for part in named[1].split(".")]
    return (*location, *below), named[2]


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def _unknown_field(schema: dict[str, Any], location: Location) -> str:
    name = str(location[-1])
    known = _fields(schema, schema, list(location[:-1]))
    close = get_close_matches(name, known, n=1)
    if close:
        return f"there is no such field: did you mean {close[0]}?"
    return "there is no such field" + (f": write one of {', '.join(known)}" if known else ": remove it")


def _fields(schema: dict[str, Any], node: Any, location: list[str | int]) -> list[str]:
    """Names of the fields that a JSON schema allows at a location."""
    if "$ref" in node:
        node = schema["$defs"][str(node["$ref"]).rsplit("/", 1)[-1]]
    if "properties" not in node and "items" not in node:
        options = [*node.get("anyOf", []), *node.get("oneOf", []), *node.get("allOf", [])]
        return sorted({name for option in options for name in _fields(schema, option, location)})
    if not location:
        return sorted(node.get("properties", {}))
    part, rest = location[0], location[1:]
    if isinstance(part, int):
        return _fields(schema, node["items"], rest) if "items" in node else []
    below = node.get("properties", {}).get(part)
    # Pydantic names the member of a union in the location; JSON schema has no such step.
    return _fields(schema, below, rest) if below is not None else _fields(schema, node, rest)
