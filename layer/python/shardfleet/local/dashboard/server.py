"""
The web server: loopback only, GET only, nothing is changed.

The page's address has a random part, which is its key: no other user of this machine can guess it,
and (other than a cookie) no other server on it is sent it. Requests for another host than this one
are refused, so that no web page elsewhere can read the dashboard through a name of its own that
points here, and so are requests that name the page which sends them.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from shardfleet.local.access import AccessKey, Door, Headers
from shardfleet.local.dashboard import page
from shardfleet.local.dashboard.definition import Dashboard, Widget
from shardfleet.local.dashboard.gathering import Gatherer

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)

Rows = Callable[[], Sequence[Mapping[str, Any]]]


class DashboardServer:
    """
    Serves one stack's dashboard at `url`.

    Args:
        gatherer: asks CloudWatch.
        leases: returns the rows of the table of leases.
        title: of the page.
        every_s: seconds between two refreshes.
        minutes: how far back the charts reach (default: as the dashboard says).
        port: 0 takes a free one.

    """

    def __init__(
        self,
        gatherer: Gatherer,
        *,
        leases: Rows,
        title: str,
        every_s: float = 5.0,
        minutes: int | None = None,
        port: int = 0,
    ) -> None:
        self._gatherer = gatherer
        self._leases = leases
        self._title = title
        self._every_s = every_s
        self._dashboard: Dashboard = gatherer.dashboard()
        self._span_s = 60.0 * (minutes or 60 * self._dashboard.hours)
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
        """Return all panels, drawn from what CloudWatch says now."""
        end = time.time()
        drawn = [self._panel(widget, end) for widget in self._dashboard.widgets]
        leases = page.table(self._leases(), empty="no lease")
        return "".join(drawn) + page.panel("Leases", leases, columns=24, rows=4)

    def _panel(self, widget: Widget, end: float) -> str:
        inside = self._inside(widget, end - self._span_s, end)
        return page.panel(widget.title, inside, columns=widget.width, rows=widget.height)

    def _inside(self, widget: Widget, start: float, end: float) -> str:
        properties = widget.properties
        if widget.kind == "text":
            return escape(properties["markdown"].replace("**", ""))
        if widget.kind == "alarm":
            return page.alarm_list(self._gatherer.alarms(properties["alarms"]))
        if widget.kind == "log":
            rows = self._gatherer.log_rows(properties["query"], start=start, end=end)
            return page.table(rows, empty="no shard is a minute behind")
        series = self._gatherer.series(properties["metrics"], start=start, end=end)
        if properties.get("view") == "singleValue":
            return page.number(series)
        return page.chart(
            series, start=start, end=end, height=widget.height * 30, columns=widget.width
        )

    def _refusal(self, path: str, headers: Headers) -> str:
        if not self._door.is_own(path[1:].partition("/")[0]):
            return "The address has to be the one that was printed, all of it."
        return self._door.astray(headers)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        pages: Mapping[str, Callable[[], str]] = {
            "": lambda: page.whole_page(self._title, every_s=self._every_s),
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
