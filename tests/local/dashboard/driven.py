"""One headless Chromium for many pages, driven through WebDriver: sizes, colours, pictures."""

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager

from tests.local.dashboard.browser import CHROMIUM, LIMIT_S

CHROMEDRIVER = shutil.which("chromedriver")
MISSING = "no Chromium with its driver on PATH (Debian: chromium chromium-driver)"
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


class Browser:
    """A session with one window."""

    def __init__(self, address):
        self._address = address
        options = {"binary": CHROMIUM, "args": [*_OPTIONS]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self._session = "/session/" + self._ask("/session", wanted)["sessionId"]

    def _ask(self, path, body, method="POST"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, method=method)  # noqa: S310 - our own driver
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310 - likewise
            return json.load(answer)["value"]

    def end(self):
        self._ask(self._session, None, "DELETE")

    def cdp(self, command, **parameters):
        """Call Chromium's own protocol."""
        body = {"cmd": command, "params": parameters}
        return self._ask(f"{self._session}/goog/cdp/execute", body)

    def looks_like(self, *, width, height=900, dark=False):
        """Set the size of the window's inside, in CSS pixels, and which colours are preferred."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url):
        self._ask(f"{self._session}/url", {"url": url})

    def run(self, script):
        """Run JavaScript, and return what it returns."""
        return self._ask(f"{self._session}/execute/sync", {"script": script, "args": []})

    def until(self, script):
        """Wait until a script returns something true, and return that."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)
        return found

    def picture(self, file, height=None):
        """Write the page as PNG: its top of that height, or all of it, however long."""
        wide, long = self.run("return [innerWidth, document.scrollingElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": wide, "height": height or long, "scale": 1}
        shot = self.cdp("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser():
    """Start the driver on a port of its own, and one Chromium."""
    driver = subprocess.Popen([CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(driver.stdout.readline, "")
        port = next(
            found[1] for line in lines if (found := re.search(r"successfully on port (\d+)", line))
        )
        opened = Browser(f"http://127.0.0.1:{port}")
        try:
            yield opened
        finally:
            opened.end()
    finally:
        driver.terminate()
        driver.wait()
        driver.stdout.close()
