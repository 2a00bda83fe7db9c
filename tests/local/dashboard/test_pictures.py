"""
Dashboard and report in a real browser: in light, in dark, and as narrow as a telephone.

`SHARDFLEET_TEST_GOLDEN=write pytest tests/local/dashboard/test_pictures.py` writes the pictures to
build/pages, and those of docs/img anew; they are looked at before they are committed.
"""

import os
from pathlib import Path

import pytest

from shardfleet_local.rig.report import write_report
from tests.local.dashboard.driven import CHROMEDRIVER, CHROMIUM, MISSING, browser
from tests.local.dashboard.planted import STATES, served
from tests.local.rig.builders import an_outcome

pytestmark = pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason=MISSING)

WRITE = os.environ.get("SHARDFLEET_TEST_GOLDEN") == "write"
ROOT = Path(__file__).resolve().parents[3]
LOOKS = {
    "light": {"width": 1400},
    "dark": {"width": 1400, "dark": True},
    "narrow": {"width": 400},
}
TOO_WIDE = """
const most = innerWidth, wide = document.scrollingElement.scrollWidth;
const those = [...document.querySelectorAll('body *')].filter(
  each => !each.closest('.drawn svg') && each.getBoundingClientRect().right > most + 0.5);
return wide > most || those.length ? [wide, ...those.map(each => each.outerHTML.slice(0, 90))] : [];
"""
# Where the fleet is said to be well: text, seals and badges. Lines of charts have any colour.
GREEN = """
const green = text => {
  const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
  return a !== 0 && g > r + 6 && g > b + 2;
};
return [...document.querySelectorAll('header, main *')].filter(each => {
  const style = getComputedStyle(each);
  return !each.closest('svg, .legend') && (green(style.color) || green(style.backgroundColor));
}).map(each => each.outerHTML.slice(0, 90));
"""
CLEAR = """
const light = text => {
  const [r, g, b] = text.match(/[\\d.]+/g).map(v => v / 255).map(
    v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
return ['.verdict p', 'h2', 'p.soft', '.alarms b', 'td'].flatMap(name => {
  const each = document.querySelector(name);
  if (!each) return [];
  const on = element => getComputedStyle(element).backgroundColor;
  let under = each;
  while (on(under) === 'rgba(0, 0, 0, 0)') under = under.parentElement;
  const [a, b] = [getComputedStyle(each).color, on(under)].map(light);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  return ratio < 4 ? [[name, ratio]] : [];
});
"""


@pytest.fixture(scope="module")
def window():
    with browser() as found:
        yield found


@pytest.fixture(scope="module", params=STATES)
def opened(request, window):
    with served(request.param, every_s=1.0) as (server, account):
        window.looks_like(width=1400)
        window.open(server.url)
        window.until("return document.querySelectorAll('main section').length > 5")
        if request.param == "endpoint gone":
            account.gone = True
            window.until("return document.body.matches('.stale.lost')")
        yield request.param


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_is_too_wide_or_pale_and_what_is_old_is_not_green(window, opened, look):
    window.looks_like(**LOOKS[look])

    assert window.run(TOO_WIDE) == []
    assert window.run(CLEAR) == []
    assert bool(window.run(GREEN)) == (opened not in ("endpoint gone", "empty"))
    if WRITE:
        folder = ROOT / "build" / "pages"
        folder.mkdir(parents=True, exist_ok=True)
        window.picture(folder / f"{opened.replace(' ', '_')}-{look}.png")
        if (opened, look) == ("stopped", "light"):
            window.looks_like(width=1000)
            window.picture(ROOT / "docs/img/dashboard.png", height=1250)


@pytest.mark.parametrize("look", LOOKS)
def test_the_report_is_nowhere_too_wide_or_pale(window, look, tmp_path):
    window.looks_like(**LOOKS[look])
    write_report(an_outcome(), tmp_path / "report.html")
    window.open((tmp_path / "report.html").as_uri())

    assert window.run(TOO_WIDE) == []
    assert window.run(CLEAR) == []
    if WRITE:
        window.picture(ROOT / "build" / "pages" / f"report-{look}.png")
