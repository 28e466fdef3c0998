"""Asks vLLM's scheduler, which runs in a process of its own environment."""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vllm_install.environment import variables
from vllm_oracle.driving import Run, Step, Summary
from vllm_oracle.errors import OracleError
from vllm_oracle.traces import Trace, trace_to_json

SHOWN_CHARACTERS = 3000


class Oracle:
    """A running driver (see `driver`); one trace at a time."""

    def __init__(self, process: subprocess.Popen[str], stderr: IO[str]) -> None:
        self._process = process
        self._stderr = stderr

    def run(self, trace: Trace) -> Run:
        """Run a trace through vLLM's scheduler.

        Raises:
            OracleError: the driver ended, or vLLM refused the trace or failed on it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(trace_to_json(trace)) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise OracleError(f"vLLM's driver ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise OracleError(f"vLLM failed on trace {trace.name}: {answer['error'][-SHOWN_CHARACTERS:]}")
        return _run(answer)

    def _last_words(self) -> str:
        self._process.wait()
        self._stderr.seek(0)
        return f"exit code {self._process.returncode}\n{self._stderr.read()[-SHOWN_CHARACTERS:]}"


@contextlib.contextmanager
def open_oracle(environment: Path) -> Iterator[Oracle]:
    """Start a driver in an environment that `vllm_install` made; ends it at the end.

    Raises:
        OracleError: the environment's Python cannot be run.
    """
    with tempfile.TemporaryFile("w+") as stderr:
        process = _start(environment, stderr)
        try:
            yield Oracle(process, stderr)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # a trace that a dead driver never read
                process.communicate()


def _start(environment: Path, stderr: IO[str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            [str(environment / "bin" / "python"), "-m", "vllm_oracle.driver"],
            env=_variables(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    except OSError as error:
        raise OracleError(
            f"vLLM's environment cannot be run ({error}): remove {environment} and install it again"
        ) from error


def _variables(environment: Path) -> dict[str, str]:
    return {**variables(environment), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def _run(answer: dict[str, Any]) -> Run:
    return Run(
        steps=[Step(**step) for step in answer["steps"]],
        summary=Summary(**answer["summary"]),
    )
