"""Two engines for all tests, and a router in front of them for each file of tests."""

from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from vllm_install.environment import installed
from vllm_install.errors import InstallError
from vllm_serving.engines import Engine, settings
from vllm_serving.model import model_folder
from vllm_serving.routing import running

HERE = Path(__file__).parent
TEST_SECONDS = 400
"""Longest test, the start of engines on a busy machine included."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give these tests more time than others have."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """Two engines; a run without vLLM ends with an error, nothing is skipped."""
    try:
        installed()
    except InstallError as error:
        pytest.exit(str(error), returncode=1)
    model_folder()
    folder = tmp_path_factory.mktemp("engines")
    engines = [Engine(each, folder) for each in settings("e0", "e1")]
    try:
        for engine in engines:
            engine.wait()
        yield engines
    finally:
        for engine in engines:
            engine.stop()


@pytest.fixture
def engines(started: list[Engine]) -> list[Engine]:
    """Both engines, serving and idle; one that a test killed is started again."""
    for engine in started:
        if not engine.alive:
            engine.restart()
        engine.wait_until_idle()
    return started


@pytest.fixture(scope="module")
def router(started: list[Engine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a router in front of both engines."""
    with running(started, tmp_path_factory.mktemp("router")) as running_router:
        yield running_router.url


@pytest.fixture
def http(router: str, engines: list[Engine]) -> Iterator[httpx.Client]:
    """A plain HTTP client of the router."""
    with httpx.Client(base_url=router, timeout=60) as client:
        yield client


@pytest.fixture
def client(router: str, engines: list[Engine]) -> Iterator[openai.OpenAI]:
    """OpenAI's client, which must not try twice: a test sees each failure."""
    with openai.OpenAI(base_url=f"{router}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def claude(router: str, engines: list[Engine]) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client."""
    with anthropic.Anthropic(base_url=router, api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for what a test starts itself."""
    return tmp_path
