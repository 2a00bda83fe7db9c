"""
The web server: loopback only, GET only, nothing is changed.

The page's address has a random part, which is its key: no other user of this machine can guess it,
and (other than a cookie) no other server on it is sent it. Requests for another host than this one
are refused, so that no web page elsewhere can read the dashboard through a name of its own that
points here, and so are requests that name the page which sends them.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, groupby
from types import TracebackType
from typing import Self

from shardfleet_local.access import AccessKey, Door, Headers
from shardfleet_local.dashboard import page
from shardfleet_local.dashboard.definition import Dashboard, Widget
from shardfleet_local.dashboard.gathering import Gatherer
from shardfleet_ops.explain.fleet_view import FleetReading, lease_rows, summary, worst_first

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFleet:
    """
    The fleet that a page shows.

    Attributes:
        title: of the page.
        options: what names the fleet on the command line, in the commands that are shown.
        reading: reads its tables.

    """

    title: str
    options: str
    reading: Callable[[], FleetReading]


class DashboardServer:
    """
    Serves one stack's dashboard at `url`.

    Args:
        gatherer: asks CloudWatch.
        fleet: whose dashboard it is.
        every_s: seconds between two refreshes.
        minutes: how far back the charts reach (default: to the first there is, and no further than
            the dashboard says).
        port: 0 takes a free one.

    """

    def __init__(
        self,
        gatherer: Gatherer,
        *,
        fleet: ShownFleet,
        every_s: float = 5.0,
        minutes: int | None = None,
        port: int = 0,
    ) -> None:
        self._gatherer = gatherer
        self._fleet = fleet
        self._every_s = every_s
        self._dashboard: Dashboard = gatherer.dashboard()
        self._span_s = 60.0 * (minutes or 60 * self._dashboard.hours)
        self._fits = minutes is None
        self._key = AccessKey()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._door = Door(self._server.server_port, self._key)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_port}/{self._key.id}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self) -> None:
        """Serve until interrupted."""
        self._thread.join()

    def panels(self) -> str:
        """Return all panels, drawn from what the tables and CloudWatch say now."""
        end = time.time()
        start = end - self._span_s
        reading, widgets = self._fleet.reading(), self._dashboard.widgets
        lines = {
            at: self._gatherer.series(widget.properties["metrics"], start=start, end=end)
            for at, widget in enumerate(widgets)
            if widget.kind == "metric"
        }
        alarms = {
            at: self._gatherer.alarms(widget.properties["alarms"])
            for at, widget in enumerate(widgets)
            if widget.kind == "alarm"
        }
        moments = [at for each in lines.values() for line in each for at, _ in line.points]
        begin = page.fitting_start(moments, start=start, end=end) if self._fits else start
        found, rows = summary(reading), worst_first(lease_rows(reading))
        doubts = page.doubts(found, newest=max(moments, default=None), end=end)
        drawn = [
            page.state_of(found, rows, alarms=chain(*alarms.values()), doubts=doubts),
            page.panel("Shards", page.lease_table(rows, options=self._fleet.options), wide=True),
        ]
        for is_number, each in groupby(enumerate(widgets), lambda found: _is_number(found[1])):
            if is_number:
                tiles = (page.number(widget.title, lines[at], end=end) for at, widget in each)
                drawn.append(f'<div class="tiles">{"".join(tiles)}</div>')
                continue
            for at, widget in each:
                if widget.kind == "metric":
                    inside = page.chart(lines[at], start=begin, end=end)
                elif widget.kind == "alarm":
                    inside = page.alarm_list(alarms[at])
                else:
                    inside = self._texts(widget, begin, end)
                drawn.append(
                    page.panel(widget.title, inside, wide=widget.kind in ("text", "alarm"))
                )
        return f'<div class="panels{" stale" if doubts else ""}">{"".join(drawn)}</div>'

    def _texts(self, widget: Widget, start: float, end: float) -> str:
        if widget.kind == "text":
            return escape(widget.properties["markdown"].replace("**", ""))
        query = widget.properties["query"]
        return page.log_table(self._gatherer.log_rows(query, start=start, end=end))

    def _refusal(self, path: str, headers: Headers) -> str:
        if not self._door.is_own(path[1:].partition("/")[0]):
            return "The address has to be the one that was printed, all of it."
        return self._door.astray(headers)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        pages: Mapping[str, Callable[[], str]] = {
            "": lambda: page.whole_page(self._fleet.title, every_s=self._every_s),
            "panels": self.panels,
        }
        refusal = self._refusal

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            def parse_request(self) -> bool:
                """Refuse who is not the user, whatever is asked for."""
                if not super().parse_request():
                    return False
                headers = [(name.lower(), value) for name, value in self.headers.items()]
                if reason := refusal(self.path, headers):
                    self._answer(HTTPStatus.FORBIDDEN, reason)
                return not reason

            def do_GET(self) -> None:
                """Answer with a page, or say what there is."""
                draw = pages.get(self.path[1:].partition("/")[2])
                if draw is None:
                    self._answer(HTTPStatus.NOT_FOUND, "there is only the page and its panels")
                    return
                try:
                    self._answer(HTTPStatus.OK, draw(), kind="text/html")
                except Exception as error:  # noqa: BLE001 - the page says why it is not refreshed
                    self._answer(HTTPStatus.BAD_GATEWAY, f"{type(error).__name__}: {error}")

            def _answer(self, status: HTTPStatus, text: str, *, kind: str = "text/plain") -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", POLICY)
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Keep quiet."""

        return Handler


def _is_number(widget: Widget) -> bool:
    return widget.properties.get("view") == "singleValue"
