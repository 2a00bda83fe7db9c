"""A headless Chromium, if this machine has one."""

import shutil
import subprocess

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_S = 120


def look(url, folder, *, picture=None, after_ms=8_000, size=(1400, 2300)):
    """Open a page, wait, and return its document as HTML; take a picture of it if asked to."""
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        f"--window-size={size[0]},{size[1]}",
        f"--user-data-dir={folder / 'profile'}",
        f"--virtual-time-budget={after_ms}",
        "--host-resolver-rules=MAP evil.example 127.0.0.1",
    ]
    if picture is not None:
        subprocess.run(
            [*command, f"--screenshot={picture}", url],
            check=True,
            capture_output=True,
            timeout=LIMIT_S,
        )
    seen = subprocess.run(
        [*command, "--dump-dom", url], check=True, capture_output=True, text=True, timeout=LIMIT_S
    )
    return seen.stdout
