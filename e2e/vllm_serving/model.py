"""The model that the engines serve: made once by `tiny_model`, and kept in the cache."""

import subprocess
from pathlib import Path

from cluster.cache import build_once, digest
from vllm_install import environment
from vllm_serving.errors import ServingError

NAME = "tiny"
"""What requests say as "model"."""
_SCRIPT = Path(__file__).with_name("tiny_model.py")


def model_folder() -> Path:
    """The folder with the model; made if need be, in ten seconds.

    Raises:
        InstallError: vLLM is not installed.
        ServingError: the model could not be made.
    """
    made_from = [_SCRIPT.read_bytes(), environment.REQUIREMENTS.read_bytes()]
    return build_once(environment.cache_folder() / f"tiny-{digest(made_from)}", _make)


def _make(folder: Path) -> None:
    python = environment.installed()
    done = subprocess.run(
        [str(python / "bin" / "python"), str(_SCRIPT), str(folder)],
        env=environment.variables(python),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServingError(f"the model could not be made: {done.stderr.strip()[-1000:]}")
