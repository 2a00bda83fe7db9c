"""
The pages as the source of a site: `python tools/documentation.py FOLDER`, for `make site`.

README is its first page, and what a page links to in the repository is a link there, if it is known
where that lies (`SHARDFLEET_PROJECT_URL`), else plain text.
"""

import os
import posixpath
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from long_description import VARIABLE, address, with_links

ROOT = Path(__file__).resolve().parents[1]
_RENAMED = {"README.md": "index.md", "docs/README.md": "pages.md"}
_TABLE_OF_PAGES = "\n```{{toctree}}\n:hidden:\n\n{}\n```\n"


def pages(root: Path = ROOT) -> dict[str, str]:
    """Return the place of each page in the repository, and its place in the site, in order."""
    inner = sorted(f"docs/{file.name}" for file in root.glob("docs/*.md"))
    found = dict.fromkeys(
        ["README.md", "docs/README.md", *inner, "CONTRIBUTING.md", "CHANGELOG.md"]
    )
    return {place: _RENAMED.get(place, posixpath.basename(place)) for place in found}


def page_of(place: str, text: str, among: Mapping[str, str], *, url: str, release: str) -> str:
    """
    Return a page with links as the site has them.

    Args:
        place: of the page in the repository.
        text: in Markdown.
        among: all pages, as :func:`pages` has them.
        url: of the repository; empty: not known.
        release: its version.

    """

    def linked(link: re.Match[str]) -> str:
        target, mark, anchor = link["place"].partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        if ":" in target or not target:
            return link[0]
        if found in among:
            return f"[{link['text']}]({among[found]}{mark}{anchor})"
        if found.startswith("docs/img/"):
            return f"![{link['text']}]({found.removeprefix('docs/')})"
        if not url:
            return link["text"]
        return f"[{link['text']}]({address(url, release, found)}{mark}{anchor})"

    # No lexer of Sphinx has it; it can be read as it stands.
    return with_links(text, linked).replace("```mermaid\n", "```text\n")


def write(folder: Path, *, url: str, release: str) -> None:
    """Write all pages and their pictures anew into a folder, which Sphinx reads."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs/img", folder / "img")
    among = pages()
    for place, name in among.items():
        text = (ROOT / place).read_text("utf-8")
        made = page_of(place, text, among, url=url, release=release)
        if name == "index.md":
            made += _TABLE_OF_PAGES.format(
                "\n".join(each for each in among.values() if each != name)
            )
        (folder / name).write_text(made, "utf-8")


if __name__ == "__main__":
    write(
        Path(sys.argv[1]),
        url=os.environ.get(VARIABLE, "").rstrip("/"),
        release=version("shardfleet"),
    )
