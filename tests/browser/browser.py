"""A headless chromium that tests ask what a page shows."""

from __future__ import annotations

import contextlib
import os
import shutil
import time

import pytest

REQUIRED = os.environ.get("MPSIM_REQUIRE_BROWSER") == "1"
PATIENCE = 60.0  # s, until a page has drawn itself

_CONTRASTS = """
const luminance = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!/, 0\\)$/.test(colour) && colour !== "transparent") return colour;
  }
  return "rgb(255, 255, 255)";
};
const found = {};
for (const node of document.querySelectorAll(arguments[0])) {
  if (!node.textContent.trim() || !node.getClientRects().length) continue;
  const a = luminance(getComputedStyle(node).color), b = luminance(behind(node));
  const name = node.tagName + "." + node.className;
  found[name] = Math.min(found[name] || 99, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
}
return found;
"""


def _missing() -> str:
    """What is not there; empty where all is."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    wanted = {
        "chromium": ("chromium", "chromium-browser", "google-chrome"),
        "chromedriver": ("chromedriver",),
    }
    for what, names in wanted.items():
        if not any(map(shutil.which, names)):
            return f"{what} is not installed"
    return ""


@contextlib.contextmanager
def browser():
    """A headless browser; the test is skipped where there is none, or fails where one is required."""
    if missing := _missing():
        (pytest.fail if REQUIRED else pytest.skip)(missing)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    names = ("chromium", "chromium-browser", "google-chrome")
    options.binary_location = next(path for path in map(shutil.which, names) if path)
    for word in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "hide-scrollbars",
    ):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


class Browser:
    """A window and what can be asked of it."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, address: str, *, theme: str = "light", width: int = 1280) -> None:
        """Show a page, and wait until it has drawn itself."""
        command = self.driver.execute_cdp_cmd
        scheme = {"name": "prefers-color-scheme", "value": theme}
        command("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 640}
        command("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.driver.get(address)
        self.settle()

    def settle(self) -> None:
        """Wait until every figure is drawn."""
        self.wait("return document.documentElement.dataset.drawn === 'yes'")
        self.run("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")

    def wait(self, script: str) -> None:
        """Wait until a script of the page returns something true."""
        until = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < until, (
                f"{script}: not within {PATIENCE} s: {self.complaints()}"
            )
            time.sleep(0.05)

    def run(self, script: str, *arguments):
        """What a script of the page returns."""
        return self.driver.execute_script(script, *arguments)

    def press(self, key: str) -> None:
        """Press a key where the focus is."""
        self.run(
            "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], bubbles: true, cancelable: true }))",
            key,
        )

    def text(self, selector: str) -> str:
        """Text of the first node that a selector finds."""
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def complaints(self) -> list[str]:
        """Warnings and errors of the console."""
        return [
            entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"
        ]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, without the page and what it holds itself."""
        import json

        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        asked = [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]
        page = self.driver.current_url.split("#")[0]
        return [
            url
            for url in asked
            if url.split("#")[0] != page and not url.startswith(("data:", "blob:", "about:"))
        ]

    def contrasts(self, selector: str) -> dict[str, float]:
        """Least contrast of text by kind of node."""
        return self.run(_CONTRASTS, selector)
