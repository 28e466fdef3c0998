"""What is said about steps."""

import io

import pytest
from rich.console import Console

from cluster.progress import Steps, clock


def test_a_step_says_what_and_how_long() -> None:
    lines: list[str] = []
    with Steps(lines.append).step("built it"):
        assert lines == []
    assert len(lines) == 1
    assert lines[0].split(maxsplit=2)[1:] == ["s", "built it"]


def test_a_failed_step_says_where_it_was() -> None:
    lines: list[str] = []
    step = Steps(lines.append).step("built it")
    step.__enter__()("3 of 5 packages")
    step.__exit__(ValueError, ValueError("broken"), None)
    assert lines[0].endswith("FAILED: built it - 3 of 5 packages")


@pytest.mark.parametrize("terminal", [pytest.param(True, id="terminal"), pytest.param(False, id="file")])
def test_a_console_gets_the_text_as_it_is(terminal: bool) -> None:
    output = io.StringIO()
    with Steps(Console(file=output, force_terminal=terminal, width=200)).step("cache [bold]x[/bold]"):
        pass
    assert "cache [bold]x[/bold]" in output.getvalue()


def test_nobody_has_to_listen() -> None:
    with Steps(None).step("built it"):
        pass


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:00"), (61, "1:01"), (600, "10:00")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
