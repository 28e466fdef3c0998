"""A headless Chromium, driven through its WebDriver."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

INSTALL = "install Chromium: apt-get install -y chromium chromium-driver"
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # Its own sandbox needs privileges that containers lack; the pages are the project's.
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-proxy-server",
    "--window-size=1400,1300",
)


def found(*names: str) -> str:
    """The first of these programs that is installed.

    Raises:
        RuntimeError: none is; says how to install them.
    """
    for name in names:
        if (path := shutil.which(name)) is not None:
            return path
    raise RuntimeError(f"there is no {' or '.join(names)}: {INSTALL}")


@contextmanager
def chromium() -> Iterator[Chrome]:
    """A browser within the block; it keeps what pages say on the console."""
    options = ChromeOptions()
    options.binary_location = found("chromium", "chromium-browser", "google-chrome")
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(found("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def console(driver: Chrome) -> list[str]:
    """What pages said on the console since this was last asked: errors, warnings, violations of policies."""
    entries: list[dict[str, object]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [str(entry["message"]) for entry in entries]


def whole_page(driver: Chrome, path: Path, *, scheme: str, width: int = 1400) -> None:
    """Take a screenshot of all of a page in a colour scheme: light or dark."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    driver.set_window_size(width, 1000)
    height = driver.execute_script("return document.documentElement.scrollHeight")
    driver.set_window_size(width, int(height) + 150)
    driver.save_screenshot(str(path))
