"""The source of the site: every page once, links led to pages of the site or to the repository."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def documentation():
    with pytest.MonkeyPatch.context() as patch:
        # A program of `make site`, and of nobody else: its folder is on nobody's path.
        patch.syspath_prepend(str(ROOT / "tools"))
        import documentation  # noqa: PLC0415

        yield documentation
    sys.modules.pop("documentation")


def test_each_page_has_a_place_and_is_reached_from_the_first(documentation, tmp_path):
    documentation.write(tmp_path / "pages", url="", release="1")

    made = {file.name for file in tmp_path.glob("pages/*.md")}
    assert len(made) == len(list(ROOT.glob("docs/*.md"))) + 3  # README, CONTRIBUTING, CHANGELOG
    first = (tmp_path / "pages/index.md").read_text("utf-8")
    listed = first.partition(":hidden:\n\n")[2].split("\n```")[0].split("\n")
    assert {*listed, "index.md"} == made


@pytest.mark.parametrize("url", ["", "https://example.org/it"])
def test_no_link_of_the_site_leads_to_what_is_not_in_it(documentation, tmp_path, url):
    documentation.write(tmp_path / "pages", url=url, release="1")

    places = {
        link.partition("#")[0]
        for file in tmp_path.glob("pages/*.md")
        for link in LINK.findall(re.sub(r"(?ms)^```.*?^```$", "", file.read_text("utf-8")))
    }
    inner = {place for place in places if place and ":" not in place}
    assert [place for place in inner if not (tmp_path / "pages" / place).exists()] == []
    ours = {place for place in places if place.startswith("https://example.org/")}
    assert bool(ours) == bool(url)


def test_links_are_written_as_the_site_has_them(documentation):
    among = {"README.md": "index.md", "docs/a.md": "a.md"}
    text = "[r](../README.md#x) [a](a.md) [t](#y) ![i](img/i.svg) [c](../layer/c.py) [w](https://w.org)"

    def page(url):
        return documentation.page_of("docs/b.md", text, among, url=url, release="1")

    kept = "[r](index.md#x) [a](a.md) [t](#y) ![i](img/i.svg)"
    assert page("") == f"{kept} c [w](https://w.org)"
    assert (
        page("https://e.org") == f"{kept} [c](https://e.org/blob/v1/layer/c.py) [w](https://w.org)"
    )
