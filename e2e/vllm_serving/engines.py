"""vLLM engines: how one is started, and what it tells of itself."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from cluster.ports import free_ports
from vllm_install import environment
from vllm_serving.model import NAME, model_folder
from vllm_serving.processes import Process

START_SECONDS = 240.0
"""Longest start: on a busy machine with a cold disk."""
BLOCK_SIZE = 32
MAX_MODEL_LEN = 8192
_LAUNCH = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where an engine listens, on 127.0.0.1, and what it does besides serving.

    With `nixl_port`, its side channel, it gives and takes KV blocks; `events_port` and `replay_port` are for
    its KV events.
    """

    name: str
    port: int
    events_port: int
    replay_port: int
    nixl_port: int | None = None
    blocks: int = 768
    max_model_len: int = MAX_MODEL_LEN


def settings(*names: str, nixl: bool = False) -> list[Settings]:
    """Settings of engines with ports that were free a moment ago."""
    ports = free_ports(4 * len(names))
    return [
        Settings(
            name=name, port=port, events_port=events, replay_port=replay, nixl_port=side if nixl else None
        )
        for name, port, events, replay, side in zip(
            names, ports[::4], ports[1::4], ports[2::4], ports[3::4], strict=True
        )
    ]


class Engine:
    """An engine that was started; `wait` for it before it is asked."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Start it; its log goes to `folder`."""
        self.settings = settings
        self.name = settings.name
        self.url = f"http://127.0.0.1:{settings.port}"
        self._folder = folder
        self._process = self._start()

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.alive

    def wait(self) -> None:
        """Wait until it serves. Raises ServingError if it does not."""
        self._process.wait_for(self._serves, seconds=START_SECONDS)

    def restart(self) -> None:
        """Start it again at the same address, and wait."""
        self._process.kill()
        self._process = self._start()
        self.wait()

    def kill(self) -> None:
        """End it as a lost node does."""
        self._process.kill()

    def stop(self) -> None:
        """End it in order."""
        self._process.stop()

    def counters(self) -> "Counters":
        """What it has counted so far."""
        return read_counters(httpx.get(f"{self.url}/metrics", timeout=30).text)

    def wait_until_idle(self, seconds: float = 20.0) -> None:
        """Wait until it runs no request. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while self.counters().running:
            if time.monotonic() > until:
                raise TimeoutError(f"engine {self.name} still runs a request after {seconds} s")
            time.sleep(0.05)

    def _start(self) -> Process:
        log = self._folder / f"{self.name}.log"
        return Process(command(self.settings), variables(self.settings), log)

    def _serves(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=10).status_code == 200
        except httpx.TransportError:
            return False


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Of vLLM's metrics.

    `queries` and `hits` are prompt tokens looked for and found in the prefix cache, `fetched` those that came
    from another engine, `generated` output tokens; `running` and `waiting` are requests now.
    """

    queries: int
    hits: int
    fetched: int
    running: int
    waiting: int
    generated: int

    def since(self, earlier: "Counters") -> "Counters":
        """What was counted after `earlier`; `running` and `waiting` as they are."""
        return Counters(
            queries=self.queries - earlier.queries,
            hits=self.hits - earlier.hits,
            fetched=self.fetched - earlier.fetched,
            running=self.running,
            waiting=self.waiting,
            generated=self.generated - earlier.generated,
        )


def read_counters(text: str) -> Counters:
    """Read an engine's exposition."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return Counters(
        queries=int(sums["vllm:prefix_cache_queries_total"]),
        hits=int(sums["vllm:prefix_cache_hits_total"]),
        fetched=int(sums["vllm:external_prefix_cache_hits_total"]),
        running=int(sums["vllm:num_requests_running"]),
        waiting=int(sums["vllm:num_requests_waiting"]),
        generated=int(sums["vllm:generation_tokens_total"]),
    )


def command(settings: Settings) -> Sequence[str]:
    """The command line of an engine."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{settings.events_port}",
        "replay_endpoint": f"tcp://*:{settings.replay_port}",
        "topic": "kv-events",
    }
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    return [
        *(str(environment.installed() / "bin" / "python"), str(_LAUNCH)),
        *("--model", str(model_folder()), "--served-model-name", NAME),
        *("--host", "127.0.0.1", "--port", str(settings.port)),
        *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(settings.blocks)),
        *("--max-model-len", str(settings.max_model_len), "--max-num-seqs", "64", "--enforce-eager"),
        *("--enable-prompt-tokens-details", "--enable-scale-out"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--kv-events-config", json.dumps(events)),
        *("--weight-transfer-config", json.dumps({"backend": "gloo"})),
        *(("--kv-transfer-config", json.dumps(transfer)) if settings.nixl_port is not None else ()),
    ]


def variables(settings: Settings) -> Mapping[str, str]:
    """Environment variables of an engine; development endpoints are on."""
    nixl = {
        "UCX_TLS": "tcp,shm,self,sysv,posix",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(settings.nixl_port),
    }
    return {
        **environment.variables(environment.installed()),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_SERVER_DEV_MODE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **(nixl if settings.nixl_port is not None else {}),
    }
