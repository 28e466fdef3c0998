"""`rolloutpool local` and `rolloutpool load` as a user runs them: real processes, signals and sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rolloutpool_api.v1alpha1 import RolloutPool, parse_pool
from rolloutpool_cli.render import ready
from rolloutpool_operator.local.ports import free_port
from rolloutpool_operator.local.store import read_body, read_events

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed-rollouts.yaml"
COMMAND = (sys.executable, "-m", "rolloutpool_cli.main")
DEADLINE_SECONDS = 40.0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fails with `what` if it does not in good time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.05)


def fast_example() -> dict[str, Any]:
    """The example, ten times faster and with shorter gaps."""
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    manifest["spec"]["engine"]["env"] = [{"name": "EMULATOR_TIME_SCALE", "value": "5"}]
    manifest["spec"]["engine"]["terminationGraceSeconds"] = 2
    manifest["spec"]["workloads"][2]["priors"]["toolGapSeconds"] = 0.1
    return manifest


def descendants(pid: int) -> set[int]:
    """Processes whose parent is `pid`."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.add(int(entry.name))
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class LocalRun:
    """One `rolloutpool local` as a process of its own."""

    def __init__(self, folder: Path, manifest: dict[str, Any], *arguments: str) -> None:
        self.folder = folder / "state"
        self.manifest = folder / "pool.yaml"
        self.write(manifest)
        self.port = free_port()
        self.output = folder / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(*COMMAND, "local", "-f", str(self.manifest), "--port", str(self.port)),
                    *("--state-dir", str(self.folder), *arguments),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest, as an editor does."""
        new = self.manifest.with_suffix(".new")
        new.write_text(yaml.safe_dump(manifest))
        new.replace(self.manifest)

    def pool(self) -> RolloutPool:
        return parse_pool(read_body(self.folder))

    def is_ready(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return ready(self.pool())
        assert self.process.poll() is None, self.output.read_text()
        return False

    def wait_ready(self) -> None:
        wait_for(f"a ready pool: {self.output.read_text()}", self.is_ready)

    def pid_of(self, module: str, marker: str) -> int:
        """Process id of the child that runs a module with an argument."""
        for pid in descendants(self.process.pid):
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if module in command and marker in command:
                return pid
        return 0

    def engine_pid(self, name: str) -> int:
        url = next(engine.url for engine in self.pool().status.endpoints.admin if engine.name == name)
        return self.pid_of("rolloutpool_sim.emulator", url.rpartition(":")[2])

    def router_pid(self) -> int:
        return self.pid_of("rolloutpool_router.main", str(self.port))

    def event_count(self, reason: str) -> int:
        return sum(event.count for event in read_events(self.folder) if event.reason == reason)

    def close(self) -> None:
        """End it if a test left it running."""
        children = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=DEADLINE_SECONDS)
        assert not [pid for pid in children if alive(pid)]


def start_load(run: LocalRun, *, seconds: float) -> subprocess.Popen[str]:
    """A load in the background; its output is JSON."""
    return subprocess.Popen(
        [
            *(*COMMAND, "load", "--json", "--url", run.url, "-f", str(run.manifest)),
            *("--duration", f"{seconds}s", "--window", "24"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(load: subprocess.Popen[str]) -> dict[str, Any]:
    """The report of a load that must not have lost a session."""
    out, err = load.communicate(timeout=120)
    assert load.returncode == 0, out + err
    report: dict[str, Any] = json.loads(out)
    assert report["lost"] == 0
    assert all(item["unfinished"] == 0 for item in report["classes"])
    return report


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=plain_environment(),
    )


def plain_environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRun]:
    """A pool with one prefill and two decode engines that several tests use one after the other."""
    run = LocalRun(tmp_path_factory.mktemp("local"), fast_example())
    try:
        run.wait_ready()
        yield run
    finally:
        run.close()


def test_it_says_where_it_serves(local: LocalRun) -> None:
    wait_for("the URL", lambda: f"Base URL for trainers: {local.url}/v1" in local.output.read_text())
    roles = {engine.role for engine in local.pool().status.endpoints.admin}
    assert roles == {"prefill", "decode"}
    assert httpx.get(f"{local.url}/v1/models").json()["data"][0]["id"] == "emulated-8b"


def test_a_load_of_all_classes_loses_nothing(local: LocalRun) -> None:
    report = finished(start_load(local, seconds=2))
    assert all(item["finished"] + item["drained"] > 0 for item in report["classes"])
    assert sum(item["errors"] for item in report["classes"]) == 0
    wait_for("the status to tell", lambda: consumed(local) > 0)
    status = command("local", "status", "--state-dir", str(local.folder))
    assert status.returncode == 0
    assert re.search(r"Ready +True +Ready", status.stdout)
    assert re.search(r"agentic +20.0% ", status.stdout)
    assert local.url in status.stdout


def test_a_killed_engine_is_restarted_and_loses_no_session(local: LocalRun) -> None:
    victim = next(engine.name for engine in local.pool().status.endpoints.admin if engine.role == "decode")
    load = start_load(local, seconds=3)
    wait_for("sessions on the engines", lambda: snapshot(local)["classes"][0]["active"] > 0)
    before = local.engine_pid(victim)
    os.kill(before, signal.SIGKILL)
    wait_for("the event", lambda: local.event_count("EngineExited") == 1)
    wait_for("the restart", lambda: local.engine_pid(victim) not in (0, before))
    wait_for("readiness", local.is_ready)
    finished(load)


def test_a_killed_router_is_restarted_and_adopts_the_sessions(local: LocalRun) -> None:
    before_load = agentic(local)["finishedTotal"]
    load = start_load(local, seconds=3)
    wait_for("sessions of many turns", lambda: agentic(local)["finishedTotal"] > before_load)
    before = local.router_pid()
    os.kill(before, signal.SIGKILL)
    wait_for("the event", lambda: local.event_count("RouterExited") == 1)
    wait_for("the restart", lambda: local.router_pid() not in (0, before))
    report = finished(load)
    assert sum(item["retries"] for item in report["classes"]) > 0
    assert agentic(local)["adoptedTotal"] > 0
    wait_for("readiness", local.is_ready)


def test_an_edited_manifest_is_a_new_generation_and_a_broken_one_is_told(local: LocalRun) -> None:
    good = yaml.safe_load(local.manifest.read_text())
    generation = local.pool().metadata.generation
    broken = {**good, "spec": {**good["spec"], "gpus": {"budget": 0}}}
    local.write(broken)
    wait_for("the complaint", lambda: local.event_count("InvalidManifest") == 1)
    assert "spec.gpus.budget" in local.output.read_text()
    assert local.pool().metadata.generation == generation
    good["spec"]["mixture"]["windowSamples"] = 50
    local.write(good)
    wait_for("the new generation", lambda: local.pool().status.observed_generation == generation + 1)
    wait_for("readiness", local.is_ready)
    assert httpx.get(f"{local.url}/v1/models").status_code == 200


def test_a_folder_belongs_to_one_pool(local: LocalRun) -> None:
    second = command("local", "-f", str(local.manifest), "--port", "0", "--state-dir", str(local.folder))
    assert second.returncode == 2
    assert "rolloutpool local stop" in second.stderr


def test_ctrl_c_leaves_no_process(local: LocalRun) -> None:
    children = descendants(local.process.pid)
    assert len(children) == 4
    local.process.send_signal(signal.SIGINT)
    assert local.process.wait(timeout=DEADLINE_SECONDS) == 0
    assert not [pid for pid in children if alive(pid)]


def test_a_killed_pool_takes_its_processes_with_it(tmp_path: Path) -> None:
    manifest = fast_example()
    manifest["spec"]["planning"] = {"mode": "Aggregated"}
    manifest["spec"]["gpus"]["budget"] = 1
    run = LocalRun(tmp_path, manifest)
    try:
        run.wait_ready()
        children = descendants(run.process.pid)
        assert len(children) == 2
        run.process.kill()
        run.process.wait(timeout=DEADLINE_SECONDS)
        wait_for("all processes to end", lambda: not any(alive(pid) for pid in children))
    finally:
        run.close()


def test_given_engines_are_used_and_none_is_started(tmp_path: Path) -> None:
    port = free_port()
    engine = subprocess.Popen(
        [
            *(sys.executable, "-m", "rolloutpool_sim.emulator", "emulated-8b", "--host", "127.0.0.1"),
            *("--port", str(port), "--num-gpu-blocks-override", "512", "--max-model-len", "2048"),
        ],
        env={**os.environ, "EMULATOR_TIME_SCALE": "5"},
        stderr=subprocess.DEVNULL,
    )
    run = LocalRun(tmp_path, fast_example(), "--engine", f"http://127.0.0.1:{port}/v1")
    try:
        run.wait_ready()
        (endpoint,) = run.pool().status.endpoints.admin
        assert endpoint.role == "aggregated"
        assert endpoint.url == f"http://127.0.0.1:{port}"
        assert len(descendants(run.process.pid)) == 1
        finished(start_load(run, seconds=1))
        assert command("local", "stop", "--state-dir", str(run.folder)).returncode == 0
        assert run.process.wait(timeout=DEADLINE_SECONDS) == 0
        assert engine.poll() is None, "a given engine is not the pool's to end"
    finally:
        run.close()
        engine.terminate()
        engine.wait(timeout=DEADLINE_SECONDS)


def test_a_bad_manifest_says_what_to_change(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(EXAMPLE.read_text().replace("budget: 3", "budget: 0"))
    result = command("local", "-f", str(path), "--port", "0", "--state-dir", str(tmp_path / "s"))
    assert result.returncode == 2
    lines = path.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, start=1) if text.startswith("    budget: 0"))
    assert f"line {line}: spec.gpus.budget: " in result.stderr
    assert "Traceback" not in result.stderr


def snapshot(run: LocalRun) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.get(f"{run.url}/admission/snapshot").json()
    return answer


def agentic(run: LocalRun) -> dict[str, Any]:
    found: dict[str, Any] = next(item for item in snapshot(run)["classes"] if item["name"] == "agentic")
    return found


def consumed(run: LocalRun) -> int:
    """Finished samples that the status tells of."""
    mixture = run.pool().status.mixture
    return mixture.window if mixture else 0
