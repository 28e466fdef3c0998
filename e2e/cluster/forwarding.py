"""`kubectl port-forward`, started again when it dies: for clusters whose network this machine is not in."""

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping

from cluster.errors import ClusterError

READY_SECONDS = 30.0
RETRY_SECONDS = 0.2


@contextlib.contextmanager
def port_forward(
    kubectl: str, env: Mapping[str, str], *, namespace: str, target: str, port: int
) -> Iterator[str]:
    """Forward a port of `target` ("NAME": a Service, "pod/NAME") to 127.0.0.1; yields the base URL.

    Raises:
        ClusterError: nothing listened within half a minute.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        local = int(free.getsockname()[1])
    end = threading.Event()
    what = target if "/" in target else f"svc/{target}"
    argv = [kubectl, "-n", namespace, "port-forward", "--address=127.0.0.1", what, f"{local}:{port}"]

    def keep_alive() -> None:
        while not end.is_set():
            with subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                while process.poll() is None and not end.wait(RETRY_SECONDS):
                    pass
                process.kill()
            end.wait(RETRY_SECONDS)

    thread = threading.Thread(target=keep_alive, name=f"port-forward {what}", daemon=True)
    thread.start()
    try:
        _wait_listening(local, what)
        yield f"http://127.0.0.1:{local}"
    finally:
        end.set()
        thread.join()


def _wait_listening(port: int, what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise ClusterError(f"kubectl port-forward {what}: not ready in {READY_SECONDS:g} s") from None
            time.sleep(RETRY_SECONDS)
