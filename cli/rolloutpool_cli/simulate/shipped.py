"""The experiment files that come with a checkout, and finding the one that the user means."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[3] / "examples" / "scenarios"
"""Where a checkout has them; a wheel has none."""


class NoSuchFile(ValueError):
    """There is no such experiment; the message says which there are."""


def shipped(folder: Path = FOLDER) -> tuple[Path, ...]:
    """The experiment files of a folder, by name."""
    return tuple(sorted(folder.glob("*.yaml")))


def find(given: str, folder: Path = FOLDER) -> Path:
    """The file of this path, or the shipped one of this name.

    Raises:
        NoSuchFile: there is neither, or the path is a folder's.
    """
    path = Path(given)
    if path.is_file():
        return path
    named = folder / f"{given}.yaml"
    if path.name == given and named.is_file():
        return named
    known = ", ".join(item.stem for item in shipped(folder))
    there = f"write the path of a file, or one of {known}" if known else "write the path of a file"
    problem = f"{given} is a folder" if path.is_dir() else f"there is no experiment {given}"
    raise NoSuchFile(f"{problem}: {there}")
