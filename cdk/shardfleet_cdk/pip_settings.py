"""
What pip was told of index and certificates, for uv, which does not read pip's files and variables.

On many machines packages come from an index of one's own, and `pip.conf` or a variable says so:
what pip could install, a deploy can, too. What uv was told itself is left as it is.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping

_PIP_S = 30
# pip's setting → uv's variable (uv: Environment variables).
_OF_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
_OLDER = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}


def uv_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which uv finds the index and certificates that pip does."""
    found = dict(environment)
    for name, value in _pip_settings(environment).items():
        variable = _OF_UV.get(name, "")
        told = {variable, _OLDER.get(variable, variable), "UV_CONFIG_FILE"} & environment.keys()
        if variable and not told:
            found[variable] = ("," if name == "find-links" else " ").join(value.split())
    return found


def _pip_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings by name; none where there is no pip."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    ran = subprocess.run(  # noqa: S603 - pip of this Python
        command,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=_PIP_S,
        check=False,
    )
    settings: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in ran.stdout.splitlines() if ran.returncode == 0 else ():
        where, _, value = line.partition("=")
        section, _, name = where.rpartition(".")
        settings.setdefault(section, {})[name] = str(ast.literal_eval(value))
    return settings["global"] | settings["install"] | settings[":env:"]
