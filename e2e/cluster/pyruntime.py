"""The bottom layer of our images: this machine's Python with the shared libraries that it needs."""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from cluster.archive import Entry, tree
from cluster.errors import ClusterError

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
RECIPE = "1"
"""Raise it when what this file puts into the layer changes: the cache goes by it and Python's version."""
LEFT_OUT = re.compile(
    r"__pycache__|site-packages|dist-packages|config-.*|tests?|idlelib|lib2to3|ensurepip|tkinter|turtledemo"
    r"|pydoc_data|_test.*|_tkinter.*|_xxtest.*"
)
LOADED_BY_NAME = (
    *("libgcc_s.so.1", "libstdc++.so.6", "libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"),
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6"),
)
"""What glibc opens by itself, and what wheels may ask for of any glibc although Python itself does not."""
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0::/root:/sbin/nologin\nnonroot:x:65532:65532::/tmp:/sbin/nologin\n",
    "etc/group": b"root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
}


def runtime_entries(stage: Path) -> Iterator[Entry]:
    """Entries of the layer; `stage` is an empty folder for what has to be changed before it is packed."""
    library = stage / "usr/local/lib" / VERSION
    shutil.copytree(sysconfig.get_path("stdlib"), library, symlinks=True, ignore=_left_out)
    program = stage / "usr/local/bin" / VERSION
    program.parent.mkdir(parents=True)
    shutil.copy(Path(sys.executable).resolve(), program)
    program.chmod(0o755)
    binaries = [program, *library.rglob("*.so")]
    libraries = shared_libraries(binaries)
    _strip(binaries)
    compile_tree(stage)
    yield from tree(stage / "usr", "usr")
    yield Entry("usr/local/bin/python3", link=VERSION)
    yield Entry("usr/local/bin/python", link=VERSION)
    for target, source in libraries.items():
        yield Entry(target, 0o755, source)
    for name, content in ACCOUNTS.items():
        yield Entry(name, 0o644, content)
    yield Entry("tmp", 0o1777)


def _left_out(folder: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if LEFT_OUT.fullmatch(name)}


def compile_tree(stage: Path) -> None:
    """Compile all Python below `stage` to .pyc files that are trusted whatever the sources' times.

    Without them every start in a read-only root would compile anew.
    """
    flags = ["-q", "-j", "0", "-s", str(stage), "-p", "/", "--invalidation-mode", "unchecked-hash"]
    # Exit code 1 only says that some file, such as a template, is not valid Python.
    subprocess.run([sys.executable, "-m", "compileall", *flags, str(stage)], capture_output=True, check=False)


def _strip(binaries: Iterable[Path]) -> None:
    strip = shutil.which("strip")
    if strip:
        subprocess.run([strip, "--strip-unneeded", *map(str, binaries)], capture_output=True, check=False)


def shared_libraries(binaries: Iterable[Path]) -> dict[str, Path]:
    """All shared libraries that `binaries` need, by their path in the image.

    Raises:
        ClusterError: ldd finds no C library, so this is not a glibc machine.
    """
    output = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"(/\S+) \(0x", output)}
    homes = [path.parent for path in found if path.name == "libc.so.6"]
    if not homes:
        raise ClusterError("cannot tell which libraries Python needs: ldd names no libc.so.6")
    system = homes[0]
    for name in LOADED_BY_NAME:
        found |= {
            path for path in (system / name, Path("/usr") / system.relative_to("/") / name) if path.exists()
        }
    # The loader looks into the C library's folder: what came from elsewhere (libpython) goes there as well.
    placed = {path: path if path.parts[1].startswith("lib") else system / path.name for path in sorted(found)}
    return {str(target).lstrip("/"): path.resolve() for path, target in placed.items()}
