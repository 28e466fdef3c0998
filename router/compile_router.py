"""Compile the router's hot modules with mypyc, without changing how they are used or what they do.

    python router/compile_router.py            into the user's cache; prints the folder, for PYTHONPATH
    python router/compile_router.py FOLDER     beside the package that is installed in FOLDER (the image)

Python prefers an extension module to the source beside it. A cached build is named after all that went into
it, so it cannot be stale, and is made once. docs/compiled-router.md says what compiled modules must not hold.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions, version
from pathlib import Path

ROUTER = Path(__file__).parent
ROOT = ROUTER.parent
PACKAGE = "rolloutpool_router"
HOT = {
    "": """answers app comments decisions gate generation headers intake legs metric_families paths prefill
        telemetry usage""",
    "wire": "answer_reader client connection engine exchange heads names request_reader",
    "core": """accounts admission classes controller demand entrants estimates fitting fleet forecast health
        identity ledger lifetable mixture occupancy outcomes ownership peers placement prefix pressure prompts
        queues reach requests retention roster sessions shared stalls standing""",
}
"""Modules that a request runs through, by subpackage. Others would win nothing, and some would break."""
BREAKING = {
    "cached_property": "it would compute each time",
    "Struct": "msgspec would not see the fields' types",
    "BaseModel": "pydantic would not see the fields' types",
}
"""What mypyc compiles into something else without a word, by how decorators and base classes are named."""
KEPT_BUILDS = 8


def main() -> None:
    """Compile, and print the folder."""
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1]).resolve()
        compile_into(folder)
    else:
        folder = cached()
    sys.stdout.write(f"{folder}\n")


def files() -> list[Path]:
    """What is compiled, relative to the folder that holds the package."""
    return [Path(PACKAGE, package, f"{name}.py") for package, names in HOT.items() for name in names.split()]


def modules() -> list[str]:
    """Their names, as they are imported."""
    return [".".join(file.with_suffix("").parts) for file in files()]


def broken(source: str) -> Iterator[str]:
    """What mypyc would silently change in a module: a message each, with its line."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        named = node.decorator_list + (node.bases if isinstance(node, ast.ClassDef) else [])
        words = {part for each in named for part in ast.unparse(each).replace("(", ".").split(".")}
        for word in sorted(words & BREAKING.keys()):
            yield f"{node.lineno}: {node.name} uses {word}: {BREAKING[word]}"
        for keyword in node.keywords if isinstance(node, ast.ClassDef) else ():
            yield f"{node.lineno}: class {node.name}(..., {ast.unparse(keyword)}): it would be dropped"


def cached() -> Path:
    """The build of these sources in the user's cache; makes it first if need be (minutes)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rolloutpool" / "compiled"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / _digest()
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another process that compiles")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            os.utime(target)  # the builds that were used last are kept
            return target
        with tempfile.TemporaryDirectory(prefix="part-", dir=cache) as part:
            aside = Path(part) / "build"
            shutil.copytree(ROUTER / PACKAGE, aside / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
            compile_into(aside)
            aside.rename(target)
        builds = sorted(cache.glob("*/"), key=lambda build: build.stat().st_mtime)
        for old in builds[:-KEPT_BUILDS]:
            shutil.rmtree(old)
    return target


def compile_into(folder: Path) -> None:
    """Put extension modules beside the package in `folder`; exits where that cannot be done."""
    _check(folder)
    # Only here: what only asks for the list need not have them.
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped,unused-ignore]

    _say(f"compiling {len(files())} modules of the router with mypy {version('mypy')}: two or three minutes")
    began = time.monotonic()
    os.chdir(ROOT)  # the paths in mypy's settings are relative, and so are those in tracebacks
    paths = [str(ROUTER.relative_to(ROOT) / file) for file in files()]
    # Code that mypy holds to be unreachable would be compiled into an error.
    options = ["--config-file", "pyproject.toml", "--warn-unreachable"]
    # What they say goes to stderr: the output is the folder alone.
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(sys.stderr):
        extensions = mypycify([*options, *paths], group_name=PACKAGE, target_dir=scratch)
        command = Distribution({"name": PACKAGE, "ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(folder), scratch
        command.ensure_finalized()
        command.run()
    _say(f"compiled in {time.monotonic() - began:.0f} s")


def _check(folder: Path) -> None:
    """See that compiling can work and gives what was asked for; exits otherwise."""
    for file in files():
        source = (ROUTER / file).read_bytes()
        if not (folder / file).exists() or (folder / file).read_bytes() != source:
            sys.exit(f"{folder} does not hold {PACKAGE} as it is in {ROUTER}: install that there first")
        for message in broken(source.decode()):
            sys.exit(f"{file}:{message}; write it otherwise, or take the module out of {__file__}")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if not shutil.which(compiler):
        sys.exit(
            f"there is no C compiler {compiler}: apt-get install gcc libc6-dev, or set CC."
            " The router runs without being compiled, too."
        )
    if not (header := Path(sysconfig.get_path("include"), "Python.h")).exists():
        sys.exit(f"there is no {header}: apt-get install python3-dev, or use a Python that brings it")


def _digest() -> str:
    """Stands for all that goes into a build: sources, settings, Python, and packages for their types."""
    total = hashlib.sha256()
    sources = [*(ROUTER / PACKAGE).rglob("*"), *(ROOT / "crds").rglob("*.py")]
    sources += [Path(__file__), ROOT / "pyproject.toml"]
    for path in sorted(path for path in sources if path.is_file() and path.suffix != ".pyc"):
        content = path.read_bytes()
        total.update(f"{path.relative_to(ROOT)} {len(content)}\n".encode() + content)
    packages = sorted(f"{each.name} {each.version}" for each in distributions())
    settings = [sys.version, sysconfig.get_config_var("EXT_SUFFIX"), os.environ.get("CC"), *packages]
    total.update("\n".join(map(str, settings)).encode())
    return total.hexdigest()[:12]


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
