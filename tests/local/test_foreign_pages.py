"""A page of another origin in a real browser, against the embedded AWS: nothing of it counts."""

import base64
import functools
import http.server
import json
import threading

import pytest

from shardfleet_local.aws.launcher import EmbeddedAws
from tests.local.dashboard.browser import CHROMIUM, look
from tests.local.launcher.conftest import zipped

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH (Debian: chromium)"),
]

ROLE = "arn:aws:iam::111122223333:role/any"
TEST_KEY = "AWS4-HMAC-SHA256 Credential=test/20261122/us-east-1/lambda/aws4_request, Signature=0"
FUNCTION = {
    "FunctionName": "of-a-page",
    "Runtime": "python3.13",
    "Role": ROLE,
    "Handler": "index.handler",
    "Code": {"ZipFile": base64.b64encode(zipped({"index.py": "def handler(*_): pass"})).decode()},
}
# Without a preflight, with one, and with the key that once was root; then what could be read.
PAGE = """<!doctype html><body>asking<script>
const aws = %(aws)s, body = %(body)s, told = [];
const ways = [
  ['simple', '/2015-03-31/functions', {mode: 'no-cors', method: 'POST', body}],
  ['reset', '/_ministack/reset', {mode: 'no-cors', method: 'POST', body: ''}],
  ['with a key', '/2015-03-31/functions',
    {method: 'POST', body, headers: {Authorization: %(key)s}}],
  ['preflight', '/_shardfleet/lambda-environment', {method: 'PUT', body: '{"A": "1"}'}],
  ['read', '/_ministack/health', {}],
  ['read ours', '/_shardfleet/workers', {}],
];
(async () => {
  for (const [name, path, how] of ways) {
    try { const a = await fetch(aws + path, how); told.push(name + ' ' + a.type + ' ' + a.status); }
    catch (error) { told.push(name + ' refused'); }
  }
  document.body.textContent = told.join('; ');
})();
</script>"""
FORM = """<!doctype html><form method=post enctype=text/plain action="%(aws)s/2015-03-31/functions">
<input name='%(before)s' value='%(after)s'></form><script>document.forms[0].submit()</script>"""


@pytest.fixture(scope="module", params=[False, True], ids=["without IAM", "with IAM"])
def aws(request):
    with EmbeddedAws(enforce_iam=request.param) as started:
        trust = {"Statement": []}
        started.client("iam").create_role(
            RoleName="any", AssumeRolePolicyDocument=json.dumps(trust)
        )
        started.client("sqs").create_queue(QueueName="is-still-there")
        yield started


@pytest.fixture
def shown(aws, tmp_path):
    """Return a function: a page, served under a name of its own, as the browser has it at last."""

    def show(text):
        (tmp_path / "www").mkdir(exist_ok=True)
        (tmp_path / "www" / "index.html").write_text(text)
        handler = functools.partial(Quiet, directory=tmp_path / "www")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                return look(f"http://evil.example:{server.server_port}/", tmp_path)
            finally:
                server.shutdown()
                thread.join()

    return show


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def untouched(aws):
    functions = aws.client("lambda").list_functions()["Functions"]
    queues = aws.client("sqs").list_queues()["QueueUrls"]
    return functions == [] and len(queues) == 1


def test_what_its_script_sends_is_refused_and_tells_it_nothing(aws, shown):
    given = {"aws": aws.endpoint_url, "body": json.dumps(FUNCTION), "key": TEST_KEY}

    text = shown(PAGE % {name: json.dumps(value) for name, value in given.items()})

    said = ["simple opaque 0", "reset opaque 0"]
    said += [f"{way} refused" for way in ("with a key", "preflight", "read", "read ours")]
    assert "; ".join(said) in text
    assert untouched(aws)


def test_a_form_that_it_sends_shows_a_refusal(aws, shown):
    before, after = (json.dumps(FUNCTION)[:-1] + ', "Description": "', '"}')

    text = shown(FORM % {"aws": aws.endpoint_url, "before": before, "after": after})

    assert "AccessDeniedException" in text
    assert untouched(aws)


def test_a_name_of_its_own_that_points_here_shows_a_refusal(aws, tmp_path):
    address = aws.endpoint_url.replace("127.0.0.1", "evil.example")
    for path in ("/_ministack/health", "/_shardfleet/workers", "/"):
        assert "Host must be 127.0.0.1:" in look(address + path, tmp_path, after_ms=1000)
