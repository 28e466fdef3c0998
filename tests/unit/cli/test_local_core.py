"""The pure parts of a local pool: manifest, options, children, events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolloutpool_api.planning import Role
from rolloutpool_api.status import PlanGroup
from rolloutpool_api.v1alpha1 import parse_pool
from rolloutpool_operator.local.children import build_children, processes_of
from rolloutpool_operator.local.events import MAX_EVENTS, EventRecord, with_event
from rolloutpool_operator.local.manifest import InvalidManifest, changed_immutable, parse_manifest
from rolloutpool_operator.local.options import InvalidOptions, parse_engines, with_given_engines
from rolloutpool_operator.local.processes import MOST_DELAY_SECONDS, restart_delay
from rolloutpool_operator.local.store import PoolStore, read_body, read_events
from rolloutpool_testkit.manifests import pool_manifest

EXAMPLES = Path(__file__).parents[3] / "examples"

GOOD = """\
apiVersion: rolloutpool.dev/v1alpha1
kind: RolloutPool
metadata: {name: mixed}
spec:
  model: {name: m}
  gpus: {budget: 2}
  workloads:
    - name: rlvr
      share: 0.5
    - name: rlhf
      share: 0.5
"""


def group(role: Role, replicas: int) -> PlanGroup:
    return PlanGroup(role=role, tensor_parallel=1, pipeline_parallel=1, replicas=replicas, gpus_per_replica=1)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_are_valid(path: Path) -> None:
    parse_manifest(path.read_text())


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        pytest.param("budget: 2", "budget: 0", "line 6: spec.gpus.budget: ", id="a-value-out-of-range"),
        pytest.param(
            "      share: 0.5\n    - name: rlhf",
            "      sahre: 0.5\n    - name: rlhf",
            "line 9: ",
            id="a-typo",
        ),
        pytest.param("share: 0.5\n    - name", "share: 0.9\n    - name", "line 7: the shares", id="shares"),
        pytest.param("  gpus: {budget: 2}\n", "", "line 4: spec.gpus: Field required", id="a-missing-field"),
        pytest.param(
            "kind: RolloutPool", "kind: Deployment", "kind RolloutPool, this has 0", id="another-kind"
        ),
        pytest.param("metadata: {name: mixed}", "metadata: {}", "metadata.name is missing", id="no-name"),
        pytest.param("model: {name: m}", "model: {name: m", "not YAML", id="broken-yaml"),
        pytest.param("{name: m}", "[" * 5000, "nested too deeply", id="nested-too-deeply"),
    ],
)
def test_a_bad_manifest_names_the_line(old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidManifest) as caught:
        parse_manifest(GOOD.replace(old, new))
    assert complaint in str(caught.value)


def test_a_pool_is_found_among_other_objects_and_its_status_is_dropped() -> None:
    text = f"---\nkind: Namespace\n---\n{GOOD}status: {{phase: Ready}}\n"
    body, pool = parse_manifest(text)
    assert pool.metadata.name == "mixed"
    assert "status" not in body


def test_immutable_fields_stay() -> None:
    old, new = (parse_pool(pool_manifest("a", model={"name": name})) for name in ("x", "y"))
    assert changed_immutable(old, old) == ""
    assert "spec.model.name is immutable" in changed_immutable(old, new)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(["http://h:1"], [(Role.AGGREGATED, "http://h:1")], id="url"),
        pytest.param(["http://h:1/v1/"], [(Role.AGGREGATED, "http://h:1")], id="with-v1"),
        pytest.param(["http://h:1/?a=b"], [(Role.AGGREGATED, "http://h:1/?a=b")], id="with-equals-sign"),
        pytest.param(
            ["prefill=http://p:1", "decode=http://d:2"],
            [(Role.PREFILL, "http://p:1"), (Role.DECODE, "http://d:2")],
            id="roles",
        ),
    ],
)
def test_engines_given_by_url(texts: list[str], expected: list[tuple[Role, str]]) -> None:
    assert [(engine.role, engine.url) for engine in parse_engines(texts)] == expected


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        pytest.param(["localhost:8000"], "write http://HOST:PORT", id="no-scheme"),
        pytest.param(["ftp://h:1"], "write http://HOST:PORT", id="other-scheme"),
        pytest.param(["https://h:1"], "write http://HOST:PORT", id="tls-which-routers-do-not-speak"),
        pytest.param(["http://[::x"], "write http://HOST:PORT", id="no-address"),
        pytest.param(["prefill=http://h:99999"], "write http://HOST:PORT", id="no-port"),
        pytest.param(["http://a b:1"], "write http://HOST:PORT", id="no-host"),
        pytest.param(["encode=http://h:1"], "write http://HOST:PORT", id="unknown-role"),
        pytest.param(["decode=http://h:1"], "one of each", id="decode-alone"),
    ],
)
def test_engines_that_cannot_be(texts: list[str], complaint: str) -> None:
    with pytest.raises(InvalidOptions, match=complaint):
        parse_engines(texts)


def test_given_engines_replace_the_planning() -> None:
    manifest = pool_manifest(planning={"mode": "Disaggregated", "timeLimitSeconds": 5}, gpus__budget=2)
    engines = parse_engines(["prefill=http://p:1", "decode=http://d:1", "decode=http://d:2"])
    spec = parse_pool(with_given_engines(manifest, engines)).spec
    assert spec.planning.mode == "Manual"
    assert [(item.role, item.replicas) for item in spec.planning.replicas or ()] == [
        ("prefill", 1),
        ("decode", 2),
    ]
    assert spec.planning.time_limit_seconds == 5
    assert spec.gpus.budget == 3
    assert with_given_engines(manifest, ()) == manifest


def test_a_set_per_group_with_a_port_per_process_and_the_router_first() -> None:
    pool = parse_pool(pool_manifest("mixed", engine__terminationGraceSeconds=9))
    ports: dict[str, int] = {}
    children = build_children(
        pool,
        [group(Role.PREFILL, 1), group(Role.DECODE, 2)],
        python="python3",
        pool_file=Path("/state/pool.json"),
        token_file=Path("/state/token"),
        port_of=lambda name: ports.setdefault(name, 20_000 + len(ports)),
    )
    assert [child.name for child in children] == ["mixed-router", "mixed-prefill-tp1", "mixed-decode-tp1"]
    assert [child.body["spec"]["replicas"] for child in children] == [1, 1, 2]
    processes = [process for child in children for process in processes_of(child.body)]
    assert processes[-1].name == "mixed-decode-tp1-1"
    assert len({process.url for process in processes}) == 4
    assert processes[0].ready_url == processes[0].url + "/readyz"
    router, engine = processes[0].command, processes[-1].command
    assert router.argv[3:5] == ("--pool-file", "/state/pool.json")
    assert engine.argv[:3] == ("python3", "-m", "rolloutpool_sim.emulator")
    assert engine.grace_seconds == 9
    assert str(ports["mixed-decode-tp1-1"]) in engine.argv
    assert engine.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"


def test_each_engine_has_ports_of_its_own_for_kv_events() -> None:
    pool = parse_pool(pool_manifest("mixed", engine__kvEvents={"enabled": True}))
    ports: dict[str, int] = {}
    children = build_children(
        pool,
        [group(Role.AGGREGATED, 2)],
        python="python3",
        pool_file=Path("f"),
        token_file=Path("t"),
        port_of=lambda name: ports.setdefault(name, 20_000 + len(ports)),
    )
    _, *engines = (process for child in children for process in processes_of(child.body))
    used = {port for process in engines for port in process.kv_ports or ()}
    assert len(used) == 4
    for process in engines:
        config = process.command.argv[process.command.argv.index("--kv-events-config") + 1]
        assert [f"tcp://127.0.0.1:{port}" in config for port in process.kv_ports or ()] == [True, True]


def test_the_same_pool_gives_the_same_children() -> None:
    pool = parse_pool(pool_manifest("mixed"))

    def build() -> list[dict[str, Any]]:
        children = build_children(
            pool,
            [group(Role.AGGREGATED, 1)],
            python="p",
            pool_file=Path("f"),
            token_file=Path("t"),
            port_of=lambda _: 1,
        )
        return [dict(child.body) for child in children]

    assert build() == build()


def test_events_are_counted_and_bounded() -> None:
    events: tuple[EventRecord, ...] = ()
    for number in range(MAX_EVENTS + 20):
        events = with_event(
            events, EventRecord(type="Normal", reason="A", message=str(number), last_seen="t")
        )
        events = with_event(
            events, EventRecord(type="Normal", reason="B", message="same", last_seen=str(number))
        )
    assert len(events) == MAX_EVENTS
    assert events[-1].count == MAX_EVENTS + 20
    assert events[-1].last_seen == str(MAX_EVENTS + 19)


def test_restart_delays_double_up_to_a_bound() -> None:
    assert [restart_delay(failures) for failures in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert restart_delay(1000) == MOST_DELAY_SECONDS


def test_the_store_counts_generations_and_versions(tmp_path: Path) -> None:
    store = PoolStore(tmp_path, clock=lambda: 1000.0)
    manifest = yaml.safe_load(GOOD)
    assert store.put_manifest(manifest)
    first = store.resource_version
    assert store.patch_status({"phase": "Ready", "summary": {"gpus": "1"}}) != first
    assert not store.put_manifest(manifest), "the same spec is no new generation"
    manifest["spec"]["gpus"]["budget"] = 3
    assert store.put_manifest(manifest)
    store.patch_status({"admission": {"revision": 1, "policy": "MISA-T"}})
    store.patch_status({"summary": None, "admission": {"revision": 2, "classes": [{"name": "a"}]}})
    body = read_body(tmp_path)
    assert body["metadata"]["generation"] == 2
    assert body["metadata"]["resourceVersion"] == store.resource_version
    admission = {"revision": 2, "policy": "MISA-T", "classes": [{"name": "a"}]}
    assert body["status"] == {"phase": "Ready", "admission": admission}
    assert json.dumps(body) == json.dumps(store.body)


def test_the_store_keeps_events(tmp_path: Path) -> None:
    store = PoolStore(tmp_path, clock=lambda: 0.0)
    assert read_events(tmp_path) == ()
    store.add_event("Warning", "EngineExited", "it ended")
    store.add_event("Warning", "EngineExited", "it ended")
    (event,) = read_events(tmp_path)
    assert event.count == 2
    assert event.last_seen == "1970-01-01T00:00:00Z"
