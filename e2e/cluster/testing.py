"""For pytest: a cluster for the tests of a folder, and what is left out, with the reason, where none runs."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cluster.base import Cluster
from cluster.doctor import missing
from cluster.opening import open_cluster

LEFT_OUT = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with a node that runs pods; one for the whole session."""
    yield from _opened(request, node=True)


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The same cluster; where pods cannot run (no root) a bare control plane, for tests of objects alone."""
    if _reasons(node=True):
        yield from _opened(request, node=False)
    else:
        yield request.getfixturevalue("cluster")


def leave_out(
    config: pytest.Config, items: list[pytest.Item], *, folder: Path, suite: str, timeout: float
) -> None:
    """Give a folder's tests their timeout, and take out those that cannot run here.

    Args:
        config: pytest's.
        items: all tests found; shortened in place.
        folder: whose tests are meant.
        suite: what to call them in the summary.
        timeout: of one test, in seconds; fixtures have none, since the first cluster may have to be built.
    """
    mine = [item for item in items if item.path.is_relative_to(folder)]
    for item in mine:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(timeout, func_only=True))
    if not mine or not (why := _reasons(node=True)):
        return
    bare = not _reasons(node=False)
    out = [item for item in mine if not (bare and _runs_without_node(getattr(item, "fixturenames", ())))]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)
    lines = config.stash.setdefault(LEFT_OUT, [])
    lines.append(f"left out: {suite} ({len(out)} tests) - {'; '.join(why)}")


def say_left_out(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each suite that was left out."""
    for line in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(line, yellow=True)


def _reasons(*, node: bool) -> list[str]:
    """Why the backend in use cannot run here; another one than the builtin says so by itself."""
    builtin = (os.environ.get("E2E_CLUSTER") or "builtin") == "builtin"
    return missing(node=node) if builtin else []


def _runs_without_node(fixtures: Sequence[str]) -> bool:
    return "control_plane" in fixtures and "cluster" not in fixtures


def _opened(request: pytest.FixtureRequest, *, node: bool) -> Iterator[Cluster]:
    report = _Reporter(request.config)
    with open_cluster(report=report, node=node) as cluster:
        yield cluster
        if request.session.testsfailed and (kept := cluster.keep_logs()):
            report(f"logs kept in {kept}")


class _Reporter:
    """Writes lines past pytest's capture, since bringing a cluster up takes a while."""

    def __init__(self, config: pytest.Config) -> None:
        self._terminal = config.pluginmanager.getplugin("terminalreporter")
        self._capture = config.pluginmanager.getplugin("capturemanager")

    def __call__(self, line: str) -> None:
        with self._capture.global_and_fixture_disabled():
            self._terminal.write_line(line)
