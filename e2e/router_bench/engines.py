"""The engines: nginx with a fixed answer, and a server of token streams."""

from __future__ import annotations

import contextlib
import http.client
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from cluster.ports import free_ports
from router_bench.environment import program
from router_bench.pool import AMPLE_BLOCKS
from router_bench.processes import HOST, Process, running, wait_for

ENGINES = 2
CHAT = "/v1/chat/completions"
_ANSWER = (
    '{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    '"message":{"role":"assistant","content":"The answer is 42."},"finish_reason":"stop"}],'
    '"usage":{"prompt_tokens":50,"completion_tokens":6,"total_tokens":56}}'
)
_MODELS = '{"object":"list","data":[{"id":"m","object":"model","max_model_len":32768}]}'
_METRICS = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{AMPLE_BLOCKS}"}} 1.0\\n'

_CONFIG = Template("""
master_process off;
daemon off;
pid $folder/nginx.pid;
error_log stderr warn;
events { worker_connections 16384; }
http {
  access_log off;
  default_type application/json;
  keepalive_requests 1000000000;
  keepalive_timeout 3600;
  client_max_body_size 1g;
  client_body_buffer_size 128k;
  client_body_temp_path $folder/body;
  proxy_temp_path $folder/proxy;
  fastcgi_temp_path $folder/fastcgi;
  uwsgi_temp_path $folder/uwsgi;
  scgi_temp_path $folder/scgi;
  server {
    $listen
    location = /health { return 200 '{}'; }
    location = /v1/models { return 200 '$models'; }
    location = /metrics { default_type text/plain; return 200 '$metrics'; }
    location = /v1/chat/completions { return 200 '$answer'; }
    location = /v1/completions { return 200 '$answer'; }
    location / { return 404; }
  }
}
""")


@dataclass(frozen=True)
class Engines:
    """Engines that run, in one process."""

    ports: list[int]
    process: Process

    @property
    def urls(self) -> list[str]:
        """One each."""
        return [f"http://{HOST}:{port}" for port in self.ports]


@contextlib.contextmanager
def fixed_engines(folder: Path, cpus: str | None) -> Iterator[Engines]:
    """Run nginx as engines that answer every chat at once with the same JSON."""
    ports = free_ports(ENGINES)
    config = folder / "nginx.conf"
    listen = " ".join(f"listen {HOST}:{port};" for port in ports)
    config.write_text(
        _CONFIG.substitute(folder=folder, listen=listen, models=_MODELS, metrics=_METRICS, answer=_ANSWER)
    )
    argv = [program("nginx"), "-e", "stderr", "-c", str(config)]
    with running("nginx", argv, folder=folder, cpus=cpus) as process:
        wait_for(process, lambda: all(answers(port) for port in ports))
        yield Engines(ports, process)


@contextlib.contextmanager
def stream_engines(folder: Path, cpus: str | None, *, events_per_second: float) -> Iterator[Engines]:
    """Run engines that stream events at a fixed pace, each with the time at which it was sent."""
    ports = free_ports(ENGINES)
    interval = round(1000 / events_per_second)
    argv = [sys.executable, "-m", "router_bench.stream_engine", str(interval), *map(str, ports)]
    with running("stream-engine", argv, folder=folder, cpus=cpus) as process:
        wait_for(process, lambda: all(answers(port) for port in ports))
        yield Engines(ports, process)


def answers(port: int) -> bool:
    """Whether a server answers GET /health with 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
