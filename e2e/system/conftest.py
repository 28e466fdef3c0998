"""One real cluster for all tests in this folder; where it cannot run, the summary says so and why."""

from pathlib import Path

import pytest

from cluster import testing
from cluster.testing import cluster, control_plane

__all__ = ["cluster", "control_plane"]

TIMEOUT_SECONDS = 420.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    testing.leave_out(config, items, folder=folder, suite="whole-system suite", timeout=TIMEOUT_SECONDS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    testing.say_left_out(terminalreporter, config)
