"""What a person sees of the debug page: live under load, safe from hostile names, usable with a keyboard."""

# ruff: noqa: D103 (the names of tests say what they show)

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import httpx
import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from browser.chromium import chromium, console, whole_page
from browser.pages import ServedPage, made_state
from rolloutpool_operator.local.ports import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "mixed-rollouts.yaml"
COMMAND = (sys.executable, "-m", "rolloutpool_cli.main")
DEADLINE_SECONDS = 60.0
SHOTS = "BROWSER_SHOTS"
"""Environment variable: folder that keeps the screenshots."""
HOSTILE = "<img src=x onerror='document.title=\"hacked\"'><script>document.title='hacked'</script>"

HIDE = """const hidden = arguments[0];
    Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event('visibilitychange'));"""
"""Script: what the browser does when its window is hidden, or shown."""
NAMELESS = """return [...document.querySelectorAll('[role=img], [role=region], section:not([hidden])')]
    .filter(node => !node.ariaLabel && !node.getAttribute('aria-labelledby')).length"""
"""Script: how many parts of the page have no name for those who hear it."""


def wait_for(what: str, condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fails with `what` if it does not in good time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go."""
    folder = Path(os.environ.get(SHOTS) or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a pool on this machine, as `rolloutpool local` runs it, with a load as of a trainer."""
    folder, port = tmp_path_factory.mktemp("pool"), free_port()
    url, output = f"http://127.0.0.1:{port}", folder / "output.txt"
    local = (*COMMAND, "local", "-f", str(EXAMPLE), "--port", str(port), "--state-dir", str(folder / "state"))
    load = (*COMMAND, "load", "--url", url, "-f", str(EXAMPLE), "--duration", "10m", "--window", "200")
    with output.open("wb") as sink, process(local, sink) as running:

        def ready() -> bool:
            assert running.poll() is None, output.read_text()
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{url}/v1/models").status_code == 200
            return False

        wait_for("the pool", ready)
        with process(load, sink):
            yield url


@contextlib.contextmanager
def process(command: tuple[str, ...], output: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    """A process within the block, terminated at its end."""
    started = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(timeout=DEADLINE_SECONDS)


def cells(browser: Chrome, table: str) -> list[list[str]]:
    """The text of a table's body, all of it at one moment."""
    script = """return [...document.getElementById(arguments[0]).tBodies[0].rows]
        .map(row => [...row.cells].map(cell => cell.innerText.trim()))"""
    rows: list[list[str]] = browser.execute_script(script, table)
    return rows


def status(browser: Chrome) -> str:
    """What the page says of its connection."""
    return str(browser.execute_script("return document.getElementById('live').textContent"))


def test_it_shows_a_pool_under_load_and_goes_on(browser: Chrome, pool: str, shots: Path) -> None:
    browser.get(f"{pool}/debug/admission")
    wait_for("classes", lambda: len(cells(browser, "classes")) == 3)
    assert [row[0] for row in cells(browser, "classes")] == ["rlvr", "rlhf", "agentic"]
    assert [row[1] for row in cells(browser, "classes")] == ["40.0 %", "40.0 %", "20.0 %"]
    wait_for("engines that are up", lambda: [row[2] for row in cells(browser, "engines")] == ["up"] * 3)
    assert sorted(row[1] for row in cells(browser, "engines")) == ["decode", "decode", "prefill"]
    wait_for(
        "quotas", lambda: all(" / " in row[2] and row[2][-1] != "0" for row in cells(browser, "classes"))
    )
    wait_for("sessions that wait", lambda: cells(browser, "queues"))
    wait_for("entries", lambda: len(cells(browser, "entered")) == 50)
    assert all("its class" in row[6] or "its prompt" in row[6] for row in cells(browser, "entered"))
    wait_for("held blocks", lambda: any(row[3][0] not in "0" for row in cells(browser, "engines") if row[3]))
    finished = [row[11] for row in cells(browser, "classes")]
    wait_for("finished sessions", lambda: [row[11] for row in cells(browser, "classes")] != finished)
    points = "return document.querySelector('#drift .line').getAttribute('points').split(' ').length"
    wait_for("a line of drift", lambda: browser.execute_script(points) >= 12)
    assert status(browser) == "live"
    for scheme in ("light", "dark"):
        whole_page(browser, shots / f"debug-admission-{scheme}.png", scheme=scheme)
    assert console(browser) == []


def test_names_are_text_whatever_they_are(browser: Chrome) -> None:
    state = made_state(3)
    state["classes"][0]["name"] = state["pool"]["name"] = state["engines"][0]["name"] = HOSTILE
    state["engines"][1] |= {"state": HOSTILE, "role": HOSTILE, "reason": HOSTILE}
    ticket = {"session": HOSTILE, "waited": 1.0, "requests": 1, "tokens": 5, "parked": False}
    state["classes"][0]["next"] = [ticket]
    decision = {"ago": 1.0, "session": HOSTILE, "class": HOSTILE, "engine": HOSTILE, "waited": 0.0}
    state["entered"] = [decision | {"decision": HOSTILE, "reason": HOSTILE}]
    state["refused"] = [decision | {"decision": HOSTILE, "reason": HOSTILE}]
    with ServedPage(state).running() as page:
        browser.get(page.url)
        wait_for("the page", lambda: status(browser) == "live")
        for table in ("classes", "engines", "queues", "entered", "refused"):
            assert any(HOSTILE in cell.replace("_", " ") for row in cells(browser, table) for cell in row)
        assert browser.title == "RolloutPool admission"
        assert browser.find_elements(By.CSS_SELECTOR, "main img, main script, header script") == []
        assert page.others == []
        assert console(browser) == []


def test_the_policy_holds_should_markup_get_in_after_all(browser: Chrome) -> None:
    with ServedPage(made_state(1)).running() as page:
        browser.get(page.url)
        wait_for("the page", lambda: status(browser) == "live")
        browser.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", HOSTILE)
        wait_for("violations", lambda: any("Content Security Policy" in said for said in console(browser)))
        assert browser.title == "RolloutPool admission"
        assert page.others == []


def test_it_asks_only_while_somebody_looks(browser: Chrome) -> None:
    with ServedPage(made_state(2)).running() as page:
        browser.get(page.url)
        wait_for("two looks", lambda: page.asked >= 2)
        browser.execute_script(HIDE, True)
        time.sleep(0.3)  # what was on its way
        asked = page.asked
        time.sleep(2.5)
        assert page.asked == asked
        browser.execute_script(HIDE, False)
        wait_for("another look", lambda: page.asked > asked)


def test_it_says_when_the_router_does_not_answer_and_recovers(browser: Chrome) -> None:
    with ServedPage(made_state(2)).running() as page:
        browser.get(page.url)
        wait_for("the page", lambda: status(browser) == "live")
        page.broken = True
        wait_for("the trouble", lambda: status(browser).startswith("no answer for"))
        assert len(cells(browser, "engines")) == 2
        page.broken = False
        wait_for("recovery", lambda: status(browser) == "live")
        console(browser)


def test_it_can_be_used_with_a_keyboard_and_be_read_out(browser: Chrome) -> None:
    with ServedPage(made_state(2)).running() as page:
        browser.get(page.url)
        wait_for("the page", lambda: status(browser) == "live")
        focused = browser.switch_to
        browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
        assert focused.active_element.text == "Skip to the engines"
        focused.active_element.send_keys(Keys.TAB)
        assert focused.active_element.get_attribute("id") == "hold"
        focused.active_element.send_keys(Keys.ENTER)
        assert focused.active_element.get_attribute("aria-pressed") == "true"
        assert status(browser) == "frozen"
        asked = page.asked
        time.sleep(1.5)
        assert page.asked <= asked + 1
        focused.active_element.send_keys(Keys.ENTER)
        wait_for("life", lambda: status(browser) == "live")
        assert browser.execute_script(NAMELESS) == 0
        assert browser.execute_script("return document.querySelectorAll('th:not([scope])').length") == 0


@pytest.mark.parametrize("engines", [pytest.param(0, id="no engine"), pytest.param(256, id="most engines")])
def test_it_shows_pools_of_any_size(browser: Chrome, engines: int) -> None:
    with ServedPage(made_state(engines)).running() as page:
        browser.get(page.url)
        wait_for("the page", lambda: status(browser) == "live")
        assert len(cells(browser, "engines")) == engines
        wait_for("more looks", lambda: page.asked >= 3)
        assert console(browser) == []
