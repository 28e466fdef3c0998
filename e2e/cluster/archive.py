"""Container images as docker-archive files, written without a daemon and the same byte for byte each time."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, order=True)
class Entry:
    """One member of a layer: a folder (neither `source` nor `link`), a file or a symbolic link."""

    name: str
    mode: int = 0o755
    source: Path | bytes | None = field(default=None, compare=False)
    link: str = ""


@dataclass(frozen=True)
class Layer:
    """An uncompressed tar and its SHA-256 (64 hex digits)."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Image:
    """A reference, its layers from the bottom up, and how it runs."""

    reference: str
    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...]
    user: str = "65532:65532"
    environment: Mapping[str, str] = field(default_factory=dict)


def tree(source: Path, target: str, keep: Callable[[Path], bool] = lambda path: True) -> Iterator[Entry]:
    """Entries for `source` (a file or a folder with all in it that `keep` takes) at `target` in the image."""
    if not keep(source):
        return
    name = target.strip("/")
    if source.is_symlink():
        yield Entry(name, 0o777, link=str(source.readlink()))
    elif source.is_dir():
        yield Entry(name)
        for child in source.iterdir():
            yield from tree(child, f"{name}/{child.name}", keep)
    else:
        yield Entry(name, 0o755 if source.stat().st_mode & 0o100 else 0o644, source)


def write_layer(path: Path, entries: Iterable[Entry]) -> Layer:
    """Write a layer: sorted, owned by root, all times zero (a .pyc must not depend on its source's time)."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for entry in sorted(set(entries)):
            _add(tar, entry)
    with path.open("rb") as handle:
        return Layer(path, hashlib.file_digest(handle, "sha256").hexdigest())


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mode = entry.mode
    if entry.link:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
        tar.addfile(info)
    elif entry.source is None:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif isinstance(entry.source, bytes):
        info.size = len(entry.source)
        tar.addfile(info, io.BytesIO(entry.source))
    else:
        info.size = entry.source.stat().st_size
        with entry.source.open("rb") as handle:
            tar.addfile(info, handle)


def image_config(image: Image) -> bytes:
    """The image's configuration (OCI image spec, config.md) as JSON."""
    machine = platform.machine()
    document = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "User": image.user,
            "WorkingDir": "/",
            "Env": [f"{key}={value}" for key, value in image.environment.items()],
            "Entrypoint": list(image.entrypoint),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in image.layers]},
    }
    return json.dumps(document, sort_keys=True).encode()


def write_archive(target: IO[bytes], images: Sequence[Image]) -> None:
    """Write a docker-archive with all `images` to a stream; a layer that several have is written once."""
    configs = {image.reference: image_config(image) for image in images}
    layers = {layer.digest: layer for image in images for layer in image.layers}
    names = {reference: f"{hashlib.sha256(config).hexdigest()}.json" for reference, config in configs.items()}
    manifest = [
        {
            "Config": names[image.reference],
            "RepoTags": [image.reference],
            "Layers": [f"{layer.digest}/layer.tar" for layer in image.layers],
        }
        for image in images
    ]
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for layer in layers.values():
            _add(tar, Entry(f"{layer.digest}/layer.tar", 0o644, layer.path))
        for reference, config in configs.items():
            _add(tar, Entry(names[reference], 0o644, config))
        _add(tar, Entry("manifest.json", 0o644, json.dumps(manifest).encode()))
