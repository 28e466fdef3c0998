"""The router's log: one record a line, bounded, without secrets, and not flooded."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutpool_router import logs

LOG = logging.getLogger("rolloutpool_router.test")


@contextmanager
def logging_to(name: str, level: str = "debug") -> Iterator[io.StringIO]:
    """Configure the log within the block, as a process does at its start; what was logged."""
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    root.handlers.clear()  # basicConfig would close those of pytest
    stream = io.StringIO()
    try:
        logs.configure(level, stream=stream, environ={logs.FORMAT_VARIABLE: name} if name else {})
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)


def objects(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_the_fields_of_its_request() -> None:
    with logging_to("json") as stream:
        extra = {"request_id": "r1", "session": "s1", "class_name": "rlvr", "engine": "e0", "seconds": 1.5}
        LOG.warning("engine %s went away", "e0", extra=extra)
    (line,) = objects(stream)
    assert datetime.fromisoformat(line.pop("ts")).tzinfo is not None
    assert line == {
        "level": "warning",
        "logger": "rolloutpool_router.test",
        "message": "engine e0 went away",
        "request_id": "r1",
        "session": "s1",
        "class": "rlvr",
        "engine": "e0",
        "seconds": 1.5,
    }


@pytest.mark.parametrize("name", ["json", "text", ""])
def test_a_request_has_one_line_and_only_at_debug_level(name: str) -> None:
    fields: dict[str, Any] = {"request_id": "r1", "session": "s1", "class_name": "rlvr", "engine": "e0"}
    with logging_to(name) as stream:
        logs.request_ended(**fields, outcome="served", seconds=0.25)
    assert len(stream.getvalue().splitlines()) == 1
    assert "served" in stream.getvalue()
    with logging_to(name, "info") as stream:
        logs.request_ended(**fields, outcome="served", seconds=0.25)
    assert stream.getvalue() == ""


def test_a_format_that_there_is_not_is_refused_with_what_to_set() -> None:
    with pytest.raises(ValueError, match="set it to json or text"):
        logs.configure("info", environ={logs.FORMAT_VARIABLE: "xml"})


SECRETS = [
    pytest.param("Authorization: Bearer abc.def-ghi", "abc.def", id="bearer"),
    pytest.param("{'authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz", id="basic"),
    pytest.param("X-Api-Key=0123456789", "0123456789", id="api key header"),
    pytest.param("api_key: 'verysecret'", "verysecret", id="api key field"),
    pytest.param("key sk-proj-ABCDEFGH12345678 was refused", "ABCDEFGH", id="OpenAI key"),
    pytest.param("hf_abcdefghijklmnop", "abcdefghijklmnop", id="Hugging Face token"),
    pytest.param("cannot reach http://user:hunter2@engine:8000/", "hunter2", id="user info of a URL"),
    pytest.param("/v1/models?token=s3cr3t&x=1", "s3cr3t", id="query"),
    pytest.param("password = opensesame", "opensesame", id="password"),
]


@pytest.mark.parametrize("name", ["json", "text"])
@pytest.mark.parametrize(("said", "secret"), SECRETS)
def test_secrets_are_blotted_out(name: str, said: str, secret: str) -> None:
    with logging_to(name) as stream:
        LOG.error("failed: %s", said, extra={"engine": said})
        try:
            raise RuntimeError(said)
        except RuntimeError:
            LOG.exception("worse")
    assert secret not in stream.getvalue()
    assert "***" in stream.getvalue()


def test_what_is_no_secret_stays() -> None:
    said = "prompt_tokens=10 max_tokens: 5, 3 tokens left, key classes rlvr, http://engine-0:8000/v1/models"
    assert logs.blot(said) == said


@given(st.text(), st.text(max_size=300))
def test_what_clients_choose_is_bounded_and_stays_on_one_line(message: str, session: str) -> None:
    with logging_to("json") as stream:
        LOG.warning("%s", message * 50, extra={"session": session})
    (line,) = stream.getvalue().rstrip("\n").split("\n")
    assert len(json.loads(line)["message"]) <= logs.MOST_MESSAGE + 16
    assert len(json.loads(line).get("session", "")) <= logs.MOST_FIELD + 16
    with logging_to("text") as stream:
        LOG.warning("%s", message, extra={"session": session})
    (line,) = stream.getvalue().rstrip("\n").split("\n")
    assert line.isprintable() or not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line)


@pytest.mark.parametrize("name", ["json", "text"])
def test_bytes_that_are_no_text_can_be_logged(name: str) -> None:
    with logging_to(name) as stream:
        LOG.warning("id %s", b"\xff".decode(errors="surrogateescape"), extra={"session": "\udcff"})
    assert stream.getvalue().encode("utf-8").count(b"udcff") == 2


def test_a_flood_is_cut_short_and_told() -> None:
    now = [0.0]
    control = logs.FloodControl(lambda: now[0])

    def passes(message: str, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("n", level, "f", 1, message, ("e0",), None)
        return record.getMessage() if control.filter(record) else None

    said = [passes("engine %s is out") for _ in range(100)]
    assert [line for line in said if line] == ["engine e0 is out"] * logs.FLOOD_LINES
    assert passes("engine %s is back") == "engine e0 is back"
    assert all(passes("debug %s", logging.DEBUG) for _ in range(100))
    now[0] = logs.FLOOD_SECONDS
    assert passes("engine %s is out") == "engine e0 is out (90 more like it were left out)"
    assert passes("engine %s is out") == "engine e0 is out"


def test_flood_control_remembers_few_messages() -> None:
    control = logs.FloodControl(lambda: 0.0)
    for number in range(10_000):
        control.filter(logging.LogRecord("n", logging.INFO, "f", 1, f"message {number}", (), None))
    assert len(control._seen) <= 256
