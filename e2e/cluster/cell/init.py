"""Process 1 of a cell: starts and stops daemons on request and undoes everything when its caller is gone.

Run as `python -m cluster.cell.init SETTINGS` (JSON, see `Settings`). Requests come on standard input and
answers go to standard output, one JSON object a line. When standard input ends, however the caller ended
(also by SIGKILL), every process of the cell is killed, its cgroups and its folder are removed and the process
exits; the kernel then drops the namespaces with their mounts and interfaces.

Without namespaces (`namespaced` false) it is a plain supervisor of the same daemons.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.cell import cgroups

MS_BIND, MNT_DETACH, PR_SET_PDEATHSIG = 4096, 2, 1
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Only the end of standard input ends a cell; its daemons get the defaults back."""
HIDDEN = ("/run", "/var/run", "/var/lib", "/var/log")
"""Where containerd, runc and the kubelet write outside the folders that one can give them."""
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What the kubelet would set for the whole machine: in the cell these are plain files with that content."""


@dataclass(frozen=True)
class Settings:
    """What a cell is made of; every path is absolute.

    `folder` is removed at the end; `lock` is an inherited descriptor whose flock says that it is in use.
    """

    folder: str
    lock: int
    namespaced: bool
    cgroup: str = ""
    address: str = ""
    service_cidr: str = ""
    busybox: str = ""


class Daemons:
    """The daemons of the cell and how they ended; also reaps the orphans that fall to process 1."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ended: dict[str, int] = {}

    def reap(self) -> None:
        """Collect every ended child."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitpid(-1, os.WNOHANG):
                pid, status = ended
                if pid == 0:
                    return
                self._note(pid, os.waitstatus_to_exitcode(status))

    def _note(self, pid: int, code: int) -> None:
        for name, process in list(self.running.items()):
            if process.pid == pid:
                process.returncode = code  # waited for here, so that it does not look by itself
                self.ended[name] = code
                del self.running[name]

    def start(self, name: str, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start `argv` as daemon `name`, its output appended to `log`; it is killed when this process is.

        Raises:
            OSError: there is no such program.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # or it may end before it is noted
        try:
            with open(log, "ab") as output:
                self.running[name] = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_as_daemon,
                )
            self.ended.pop(name, None)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def stop(self, name: str, signum: int, timeout: float) -> None:
        """Send `signum` and wait for the end; after `timeout` seconds send SIGKILL.

        Raises:
            KeyError: no daemon `name` was ever started.
        """
        if name not in self.running and name not in self.ended:
            raise KeyError(name)
        deadline = time.monotonic() + timeout
        sent = 0
        while process := self.running.get(name):
            wanted = signum if time.monotonic() < deadline else signal.SIGKILL
            if wanted != sent:
                with contextlib.suppress(ProcessLookupError):  # it may just have been reaped
                    os.kill(process.pid, wanted)
                sent = wanted
            time.sleep(0.01)

    def kill_all(self, *, namespaced: bool) -> None:
        """Kill every process of the cell (without namespaces: every daemon) and wait until they are gone."""
        for pid in [-1] if namespaced else [process.pid for process in self.running.values()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                self._note(os.waitpid(-1, 0)[0], -signal.SIGKILL)


def _as_daemon() -> None:
    """In a new daemon, before it becomes its program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def build_cell(settings: Settings) -> None:
    """Give the new namespaces their interfaces, hide what would be written outside, make the cgroup."""
    for folder in dict.fromkeys(os.path.realpath(path) for path in HIDDEN):
        mount("tmpfs", folder, "tmpfs")
    files = Path(settings.folder) / "sysctl"
    files.mkdir()
    for name, value in SYSCTLS.items():
        target = Path("/proc/sys") / name
        if target.exists():
            stand_in = files / name.replace("/", ".")
            stand_in.write_text(f"{value}\n")
            mount(str(stand_in), str(target), flags=MS_BIND)
    bridge = "nodebr"
    for words in (
        "link set lo up",
        f"link add {bridge} type bridge",
        f"addr add {settings.address}/32 dev {bridge}",
        f"link set {bridge} up",
        # There is no default route; without this one a Service's address could not be reached from the node.
        f"route add {settings.service_cidr} dev {bridge} src {settings.address}",
    ):
        subprocess.run([settings.busybox, "ip", *words.split()], check=True, stdout=sys.stderr)
    cgroups.create(settings.cgroup)


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """mount(2), which unlike mount(8) leaves no note of it under /run.

    Raises:
        OSError: as mount(2) does.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def undo(settings: Settings) -> None:
    """Remove the cgroup and the folder (whatever is still mounted in this namespace is detached first)."""
    if settings.namespaced:
        libc = ctypes.CDLL(None)
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            target = line.split()[1]
            if target.startswith(("/run/", "/var/lib/", settings.folder)):
                libc.umount2(target.encode(), MNT_DETACH)
        cgroups.remove(settings.cgroup)
    shutil.rmtree(settings.folder, ignore_errors=True)


def get(url: str, timeout: float) -> int:
    """HTTP status of a GET (0: no answer), asked from inside the cell and never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def serve(daemons: Daemons) -> None:
    """Answer requests until standard input ends."""
    signal.signal(signal.SIGCHLD, lambda *_: daemons.reap())
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {"number": request.pop("number")}
        try:
            match request.pop("op"):
                case "start":
                    daemons.start(**request)
                case "stop":
                    daemons.stop(**request)
                case "get":
                    answer["status"] = get(**request)
                case "ended":
                    answer["ended"] = daemons.ended
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Build the cell, serve, undo."""
    settings = Settings(**json.loads(sys.argv[1]))
    if settings.namespaced and os.getpid() != 1:
        sys.exit(
            "this must be process 1 of a namespace of its own: at the end it kills every process it sees"
        )
    os.set_inheritable(settings.lock, False)
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    daemons = Daemons()
    try:
        if settings.namespaced:
            build_cell(settings)
        sys.stdout.write('{"number": 0}\n')
        sys.stdout.flush()
        serve(daemons)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # from here on every child is waited for below
        daemons.kill_all(namespaced=settings.namespaced)
        undo(settings)


if __name__ == "__main__":
    main()
