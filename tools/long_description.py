"""
The package's long description and addresses, made of README when the package is built.

A reader of the description has no checkout beside it, so no link in it is relative. Where the
project lies says whoever publishes it, in the variable ``SHARDFLEET_PROJECT_URL``; without it there
is no address to name, and what a link leads to is left out.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "SHARDFLEET_PROJECT_URL"
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|`[^`]*`)*)\]\((?P<place>[^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def with_links(text: str, linked: Callable[[re.Match[str]], str]) -> str:
    """Return Markdown with each link as a function writes it (image, text, place); not its code."""
    parts = _FENCED.split(text)
    return "".join(each if each.startswith("```") else _LINK.sub(linked, each) for each in parts)


def address(url: str, version: str, place: str, *, is_image: bool = False) -> str:
    """Return where a file of a release lies in a repository."""
    return f"{url}/{'raw' if is_image else 'blob'}/v{version}/{place}"


def long_description(readme: str, *, url: str, version: str) -> str:
    """
    Return a README in which every link is absolute, or is none.

    Args:
        readme: in Markdown; links lie relative to the repository's root.
        url: of the repository; empty: not known.
        version: of the release, whose tag is ``v`` and it.

    """

    def absolute(link: re.Match[str]) -> str:
        image, text, place = link["image"], link["text"], link["place"]
        if re.match(r"[a-z]+:", place):
            return link[0]
        if place.startswith("#") or not url:
            return "" if image else text
        return f"{image}[{text}]({address(url, version, place, is_image=bool(image))})"

    return with_links(readme, absolute)


class LongDescription(MetadataHookInterface):
    """Hatch's hook: fills in what pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description, and the addresses if they are known."""
        url = os.environ.get(VARIABLE, "").rstrip("/")
        text = Path(self.root, "README.md").read_text("utf-8")
        made = long_description(text, url=url, version=metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": made}
        if url:
            release = metadata["version"]
            metadata["urls"] = {
                "Source": url,
                "Documentation": address(url, release, "docs/README.md"),
                "Changes": address(url, release, "CHANGELOG.md"),
            }
