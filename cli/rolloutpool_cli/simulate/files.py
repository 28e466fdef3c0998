"""What the command leaves behind: results.json, pictures and the page."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

from rolloutpool_cli.simulate.figures import Picture, compare_picture, sweep_picture
from rolloutpool_cli.simulate.outcome import Outcome
from rolloutpool_cli.simulate.page import page
from rolloutpool_cli.simulate.timelines import course_pictures, iterations_picture

RESULTS = "results.json"
PAGE = "report.html"
PACKAGES = ("rolloutpool", "pydantic", "matplotlib")


def versions() -> dict[str, str]:
    """What ran: the project, what its figures depend on, Python and the machine."""
    found = {name: version(name) for name in PACKAGES}
    return {**found, "python": platform.python_version(), "platform": platform.platform()}


def write_outcome(outcome: Outcome, folder: Path) -> tuple[Path, ...]:
    """Write all files of an outcome that has a finished run; returns their paths.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = pictures(outcome)
    written = [folder / RESULTS, folder / PAGE, *(folder / f"{picture.name}.png" for picture in shown)]
    written[0].write_text(json.dumps(outcome.to_wire(), separators=(",", ":")) + "\n")
    written[1].write_text(page(outcome, shown))
    for path, picture in zip(written[2:], shown, strict=True):
        path.write_bytes(picture.png)
    return tuple(written)


def pictures(outcome: Outcome) -> tuple[Picture, ...]:
    """Draw everything that there is to see, the comparison first."""
    if outcome.points:
        return (sweep_picture(outcome.experiment, outcome.flatness),)
    iterations = iterations_picture(outcome.rows, outcome.results, outcome.scenarios)
    courses = course_pictures(outcome.rows, outcome.results, outcome.scenarios, seed=outcome.seeds[0])
    compared = compare_picture(outcome.experiment, outcome.rows)
    return (compared, *([iterations] if iterations else []), *courses)
