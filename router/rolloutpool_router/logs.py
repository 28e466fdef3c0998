"""The router's log: one JSON object a line for machines, or text for a terminal.

Neither holds secrets: what looks like a credential is blotted out, prompts and headers are never logged, and
what a client can choose is bounded and kept on one line. One message that comes in a flood is cut short.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

FORMAT_VARIABLE = "ROLLOUTPOOL_LOG_FORMAT"
"""Environment variable: json or text; unset: text."""
FIELDS = {
    "request_id": "request_id",
    "session": "session",
    "class_name": "class",
    "engine": "engine",
    "outcome": "outcome",
    "seconds": "seconds",
}
"""What `extra` may hold, and the names in the log."""
MOST_FIELD = 128
"""Longest field, in characters: sessions, request ids and the like are chosen by clients."""
MOST_MESSAGE = 4096
"""Longest message, and longest traceback, in characters."""
FLOOD_LINES = 10
"""Most lines of one message in FLOOD_SECONDS."""
FLOOD_SECONDS = 10.0
_MOST_MESSAGES = 256
"""Most messages told apart by the flood control."""

_BLOT = "***"
_SECRETS = (
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE), rf"\1 {_BLOT}"),
    (re.compile(r"\b(?:sk|hf|pk|ghp|xox[a-z])[-_][\w-]{8,}"), _BLOT),
    (re.compile(r"://[^/\s@]*@"), f"://{_BLOT}@"),
    (
        re.compile(
            r"((?:authorization|cookie|api[-_]?key|token|secret|password)[\"']?\s*[:=]\s*[\"']?)"
            r"(?!bearer|basic)[^\s\"',;&]+",
            re.IGNORECASE,
        ),
        rf"\1{_BLOT}",
    ),
)
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    10: "\\n",
    13: "\\r",
    9: " ",
}

ACCESS = logging.getLogger("rolloutpool_router.access")
"""Has one line for each request, at debug level."""


def configure(
    level: str, *, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ
) -> logging.Handler:
    """Log to `stream` (default: standard error) in the format that the environment asks for.

    Args:
        level: debug, info, warning or error.
        stream: where to.
        environ: the process's environment.

    Returns:
        The one handler of the root logger.

    Raises:
        ValueError: the environment asks for a format that there is not.
    """
    name = environ.get(FORMAT_VARIABLE) or "text"
    formats: dict[str, type[logging.Formatter]] = {"json": JsonFormatter, "text": TextFormatter}
    if name not in formats:
        raise ValueError(f"{FORMAT_VARIABLE} is {name!r}: set it to json or text")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formats[name]())
    handler.addFilter(FloodControl())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # They would log each watch of the API server, once a minute, and each batch of spans.
    for noisy in ("httpx2", "httpx", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler


def request_ended(
    *, request_id: str, session: str, class_name: str, engine: str, outcome: str, seconds: float
) -> None:
    """The one line of a request, at debug level."""
    fields = {"request_id": request_id, "session": session, "class_name": class_name}
    more = {"engine": engine, "outcome": outcome, "seconds": round(seconds, 6)}
    ACCESS.debug("request ended", extra={**fields, **more})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, level, logger, message, and what is known of the request."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        line |= _fields(record)
        if (trace := _traceback(self, record)) is not None:
            line["traceback"] = trace
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, and what is known of the request as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; a traceback follows on lines of its own."""
        head = f"{_timestamp(record)} {record.levelname} {record.name} {_message(record).translate(_CONTROL)}"
        fields = (f"{name}={value}".translate(_CONTROL) for name, value in _fields(record).items())
        line = " ".join((head, *fields))
        trace = _traceback(self, record)
        return f"{line}\n{trace}" if trace is not None else line


class FloodControl(logging.Filter):
    """Lets so many lines of one message pass in a while; the next one that does says how many did not.

    Debug lines all pass: who asks for them wants them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged."""
        if record.levelno <= logging.DEBUG:
            return True
        now, key = self._clock(), (record.name, str(record.msg)[:MOST_FIELD])
        since, lines = self._seen.get(key, (now, 0))
        if now - since >= FLOOD_SECONDS:
            if lines > FLOOD_LINES:
                record.msg = f"{record.getMessage()} ({lines - FLOOD_LINES} more like it were left out)"
                record.args = None
            since, lines = now, 0
        if key not in self._seen and len(self._seen) >= _MOST_MESSAGES:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = since, lines + 1
        return lines < FLOOD_LINES


def blot(text: str) -> str:
    """A text without what looks like a credential."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _timestamp(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, tz=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    return _clean(record.getMessage(), MOST_MESSAGE)


def _clean(text: str, most: int) -> str:
    """Bounded, without secrets, and fit to be written: a header may hold bytes that are no text."""
    return blot(text[:most]).encode(errors="backslashreplace").decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = {}
    for name, shown in FIELDS.items():
        value = record.__dict__.get(name)
        if isinstance(value, str):
            value = _clean(value, MOST_FIELD)
        if value is not None and value != "":
            found[shown] = value
    return found


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    """The end of the traceback, which says most."""
    if not record.exc_info:
        return None
    return _clean(formatter.formatException(record.exc_info)[-MOST_MESSAGE:], MOST_MESSAGE)
