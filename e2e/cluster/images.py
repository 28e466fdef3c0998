"""Builds the project's images from this checkout, without daemon or registry; only our code is not cached."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from cluster import pyruntime
from cluster.archive import Entry, Image, Layer, tree, write_archive, write_layer
from cluster.binaries import Binaries
from cluster.cache import build_once, cache_root, digest
from cluster.components import (
    COMPONENTS,
    PROJECT,
    Component,
    package_folders,
    read_pyproject,
    reference,
    requirements,
)
from cluster.downloads import fetch_debian
from cluster.errors import ClusterError
from cluster.progress import Steps

NAMES = (*COMPONENTS, "python")
"""The images by name; "python" is a client for tests: Python, busybox and nothing of ours."""
DEPENDENCIES, APP = "opt/dependencies", "opt/app"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": f"/{APP}:/{DEPENDENCIES}",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
}
BUSYBOX = (
    "sh",
    "hostname",
    "ls",
    "cat",
    "sleep",
    "wget",
    "nc",
    "nslookup",
    "ip",
    "id",
    "env",
    "ps",
    "kill",
    "echo",
)
PRUNED = (
    *(
        "pulp/solverdir/cbc/osx",
        "pulp/solverdir/cbc/win",
        "pulp/solverdir/cbc/linux/i32",
        "pulp/solverdir/cbc/linux/arm64",
    ),
    *(
        "cbcbox/cbc_dist_*",
        "cbcbox/cbc_dist/include",
        "cbcbox/cbc_dist/lib/cmake",
        "cbcbox/cbc_dist/lib/*.so",
    ),
    *("cbcbox/cbc_dist/lib/*.so.0.0.0", "cbcbox/cbc_dist/lib/libopenblasp-*"),
)
"""Solvers for other machines, other builds and copies of CBC's libraries: 600 MB that nothing uses."""


@contextlib.contextmanager
def built(names: Sequence[str], steps: Steps) -> Iterator[list[Image]]:
    """The images `names`, whose app layers exist only inside the block.

    Raises:
        ClusterError: a name is unknown or pip failed.
    """
    if unknown := sorted(set(names) - set(NAMES)):
        raise ClusterError(f"no image {', '.join(unknown)}; there are {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="rolloutpool-images-") as scratch:
        yield [_image(name, Path(scratch), steps) for name in names]


def _image(name: str, scratch: Path, steps: Steps) -> Image:
    python = _python_layer(steps)
    if name not in COMPONENTS:
        tools = _busybox_layer(steps)
        return Image(reference(name), (python, tools), ("python3",), environment=ENVIRONMENT)
    component = COMPONENTS[name]
    layers = (python, _dependencies_layer(component, steps), app_layer(component, scratch))
    return Image(reference(name), layers, component.entrypoint, environment=ENVIRONMENT)


def node_images(binaries: Binaries, scratch: Path) -> list[Image]:
    """The images that the cluster itself needs: the pods' pause container and CoreDNS."""
    images = []
    for name, user in (("pause", "65532:65532"), ("coredns", "")):
        layer = write_layer(scratch / f"{name}.layer", [Entry(name, 0o755, binaries[name])])
        images.append(Image(reference(name), (layer,), (f"/{name}",), user=user))
    return images


def prepare(steps: Steps) -> None:
    """Put every layer that is worth caching into the cache."""
    _python_layer(steps)
    _busybox_layer(steps)
    for component in COMPONENTS.values():
        _dependencies_layer(component, steps)


def write(names: Sequence[str], target: IO[bytes], steps: Steps) -> None:
    """Build the images `names` and write them as one docker-archive."""
    with built(names, steps) as images:
        write_archive(target, images)


def app_layer(component: Component, scratch: Path, project: Path = PROJECT) -> Layer:
    """Our packages of `component` as they are in the checkout now, compiled."""
    stage = scratch / f"{component.name}.app"
    folders = package_folders(read_pyproject(project))
    for package in component.packages:
        copy_package(package, folders, project, stage / APP)
    metadata = stage / APP / "rolloutpool-dev.dist-info" / "METADATA"
    metadata.parent.mkdir()
    version = read_pyproject(project)["project"]["version"]
    metadata.write_text(f"Metadata-Version: 2.1\nName: rolloutpool\nVersion: {version}\n")
    pyruntime.compile_tree(stage)
    return write_layer(scratch / f"{component.name}.layer", tree(stage / "opt", "opt"))


def copy_package(package: str, folders: dict[str, str], project: Path, target: Path) -> None:
    """Copy a package with all below it, and of the packages that it is in only their `__init__.py`."""
    top, *rest = package.split(".")
    source, destination = project / folders[top], target / top
    for name in rest:
        destination.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "__init__.py", destination)
        source, destination = source / name, destination / name
    shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def _python_layer(steps: Steps) -> Layer:
    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory() as stage:
            _store(target, pyruntime.runtime_entries(Path(stage)))

    key = digest([pyruntime.RECIPE, sys.version, sys.base_prefix])
    return _cached(
        f"layer-python-{key}",
        f"packed Python {sys.version.split()[0]} as an image layer (once)",
        build,
        steps,
    )


def _busybox_layer(steps: Steps) -> Layer:
    busybox = fetch_debian(steps) / "bin/busybox"
    links = [Entry(f"bin/{name}", link="busybox") for name in BUSYBOX]

    def build(target: Path) -> None:
        _store(target, [Entry("bin/busybox", 0o755, busybox), *links])

    return _cached(
        f"layer-busybox-{digest(BUSYBOX)}", "packed busybox as an image layer (once)", build, steps
    )


def _dependencies_layer(component: Component, steps: Steps) -> Layer:
    wanted = requirements(read_pyproject(), component.extra)

    def build(target: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            stage = Path(name)
            _pip_install(wanted, stage / DEPENDENCIES)
            _prune(stage / DEPENDENCIES)
            pyruntime.compile_tree(stage)
            _store(target, tree(stage / "opt", "opt"))

    key = digest([pyruntime.RECIPE, pyruntime.VERSION, *PRUNED, *wanted])
    what = f"installed the {component.name}'s requirements as an image layer (once)"
    return _cached(f"layer-{component.name}-{key}", what, build, steps)


def _pip_install(wanted: Sequence[str], target: Path) -> None:
    flags = ["-q", "--no-compile", "--only-binary=:all:", "--target", str(target)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *flags, *wanted], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ClusterError(f"pip install {' '.join(wanted)} failed: {done.stderr.strip()[-2000:]}")
    shutil.rmtree(target / "bin", ignore_errors=True)


def _prune(root: Path) -> None:
    for pattern in PRUNED:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _store(target: Path, entries: Iterable[Entry]) -> None:
    layer = write_layer(target / "layer.tar", entries)
    (target / "digest").write_text(layer.digest)


def _cached(name: str, what: str, build: Callable[[Path], None], steps: Steps) -> Layer:
    folder = cache_root() / name
    if not folder.exists():
        with steps.step(what):
            build_once(folder, build)
    return Layer(folder / "layer.tar", (folder / "digest").read_text())
