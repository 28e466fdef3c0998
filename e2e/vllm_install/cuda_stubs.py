"""Stand-ins for the CUDA libraries, so that torch's CUDA build imports on a machine without them.

torch's libraries name CUDA's as needed, and the loader wants every function that they may call. A stub
exports these names, under the version names that torch was linked against, and each function returns
`cudaErrorNoDevice`; `torch.cuda.is_available()` is then False.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_install.errors import InstallError

TOOLS = ("gcc", "nm", "readelf")
NO_DEVICE = 100
"""cudaErrorNoDevice."""
DRIVER = "libcuda.so.1"
"""Comes with a GPU's driver and is only opened where there is one."""

_LIBRARY = re.compile(r"lib(cu|nccl|nvrtc|nvshmem|nvJitLink)")
_UNVERSIONED = re.compile(r"(cu[A-Z]|cuda|curand|cusparseLt|cuFile|cupti|nccl|nvshmem|nvrtc)")


@dataclass(frozen=True, kw_only=True)
class Stub:
    """One library to be made: its functions, and the version name they carry, if any."""

    functions: frozenset[str]
    version: str | None


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """What one of torch's libraries asks the loader for.

    `needed` are libraries, `providers` maps version names to the library that has them, `undefined` and
    `defined` are symbols, as `name` or `name@version`.
    """

    needed: frozenset[str]
    providers: Mapping[str, str]
    undefined: frozenset[str]
    defined: frozenset[str]


def write(libraries: Path) -> None:
    """Add the stubs to torch's library folder, where its libraries look first.

    Raises:
        InstallError: a tool of `TOOLS` failed.
    """
    torch = [path for path in sorted(libraries.glob("*.so")) if not _LIBRARY.match(path.name)]
    for name, stub in plan([_linkage(path) for path in torch]).items():
        _compile(libraries / name, stub)


def plan(linkages: Iterable[Linkage]) -> dict[str, Stub]:
    """Which stubs the libraries need, by file name.

    Symbols without a version name cannot be told apart, so one library without versions gets them all.
    """
    linkages = list(linkages)
    needed = {name for each in linkages for name in each.needed if _LIBRARY.match(name)} - {DRIVER}
    providers = {
        version: library
        for each in linkages
        for version, library in each.providers.items()
        if _LIBRARY.match(library)
    }
    versions = {library: version for version, library in providers.items()}
    functions: dict[str, set[str]] = {name: set() for name in needed}
    loose = min(needed - set(versions), default=None)
    defined = {symbol.partition("@")[0] for each in linkages for symbol in each.defined}
    for symbol in {symbol for each in linkages for symbol in each.undefined}:
        name, _, version = symbol.replace("@@", "@").partition("@")
        if version in providers:
            functions[providers[version]].add(name)
        elif loose and not version and name not in defined and _UNVERSIONED.match(name):
            functions[loose].add(name)
    return {
        name: Stub(functions=frozenset(names), version=versions.get(name))
        for name, names in sorted(functions.items())
    }


def _linkage(library: Path) -> Linkage:
    symbols = [line.split()[-2:] for line in _run("nm", "-D", str(library)).splitlines()]
    return Linkage(
        needed=frozenset(re.findall(r"\(NEEDED\).*\[(.*)\]", _run("readelf", "-dW", str(library)))),
        providers=_providers(_run("readelf", "-VW", str(library))),
        undefined=frozenset(symbol for kind, symbol in symbols if kind == "U"),
        defined=frozenset(symbol for kind, symbol in symbols if kind not in "Uw"),
    )


def _providers(versions: str) -> dict[str, str]:
    """Version names by library, from the `.gnu.version_r` part of `readelf -V`."""
    providers = {}
    library = ""
    for found in re.finditer(r"File: (\S+)|Name: (\S+)\s+Flags", versions):
        library = found[1] or library
        if found[2] and library:
            providers[found[2]] = library
    return providers


def _compile(target: Path, stub: Stub) -> None:
    source = "".join(f"long {name}() {{ return {NO_DEVICE}; }}\n" for name in sorted(stub.functions))
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder, "stub.c")
        code.write_text(source + "int rolloutpool_stub;\n")
        script = Path(folder, "versions")
        script.write_text(f"{stub.version} {{ global: *; }};\n")
        versioned = [f"-Wl,--version-script={script}"] if stub.version else []
        _run(
            *("gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{target.name}"),
            *versioned,
            *("-o", str(target), str(code)),
        )


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(f"{' '.join(argv[:3])} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
