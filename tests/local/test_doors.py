"""
Nobody but the user calls a server of ours: each server class, each way in that a stranger has.

A stranger is another user of this machine, who can open any port of the loopback interface and set
any header, and a web page in the user's browser, which can do less: it cannot choose its Host or
its Origin.
"""

import ast
import contextlib
import http.client
import json
import random
import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.dashboard.definition import Dashboard
from shardfleet_local.dashboard.server import DashboardServer, ShownFleet
from shardfleet_local.rig.proxy import FaultDice, FaultyProxy
from tests.local.dashboard.planted import planted_reading
from tests.local.launcher.conftest import zipped
from tests.test_tidy import ROOT

pytestmark = pytest.mark.processes

KINESIS = "Kinesis_20131202.ListStreams"
JSON = "application/x-amz-json-1.1"
# Where the library listens, and the test's own name of each server.
LISTENING = {
    "tools/shardfleet_local/aws/launcher.py": {"embedded AWS", "embedded AWS with IAM"},
    "tools/shardfleet_local/kinesis/server.py": {"Kinesis alone"},
    "tools/shardfleet_local/rig/proxy.py": {"chaos proxy"},
    "tools/shardfleet_local/dashboard/server.py": {"dashboard"},
}
LISTENS = re.compile(r"(create_server|start_server|\w*HTTPServer|\w*UnixServer|Listener)$")


class Served:
    """A running server and a request that its own user sends, which is answered well."""

    def __init__(self, url, *, key=None, path="/"):
        parts = urlsplit(url)
        self.host, self.path, self.key = parts.netloc, path, key
        self.headers = {"X-Amz-Target": KINESIS, "Content-Type": JSON} if key else {}
        if key:
            self.headers["Authorization"] = authorization(key)

    def ask(self, method=None, path=None, body=b"{}", **headers):
        """Send the user's request with these headers instead (None: left out)."""
        given = {"Host": self.host, **self.headers}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.putrequest(
            method or ("POST" if self.key else "GET"), path or self.path, skip_host=True
        )
        for name, value in {**given, "Content-Length": str(len(body))}.items():
            for each in [value] if isinstance(value, str) else value or ():
                connection.putheader(name, each)
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        allowed = [name for name in answer.headers if name.lower().startswith("access-control")]
        assert allowed == [], "no page of another origin may read an answer"
        return answer.status


def authorization(key, service="kinesis"):
    """Sign as botocore does; what is signed is not what is looked at."""
    request = AWSRequest(method="POST", url="http://127.0.0.1/", data=b"{}")
    SigV4Auth(Credentials(key, "secret"), service, "us-east-1").add_auth(request)
    return request.headers["Authorization"]


@contextlib.contextmanager
def kinesis_alone():
    command = [sys.executable, "-P", "-m", "shardfleet_local.kinesis"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            told = json.loads(process.stdout.readline())
            key = told["environment"]["AWS_ACCESS_KEY_ID"]
            yield Served(told["endpoint"], key=key)
        finally:
            process.terminate()


@contextlib.contextmanager
def proxied(aws):
    dice = FaultDice(random.Random(1), rate=0.0)
    with FaultyProxy(aws.endpoint_url, dice, key=aws.key) as proxy:
        yield Served(proxy.url, key=aws.key.id)


class NoMetrics:
    def dashboard(self):
        return Dashboard(widgets=[], hours=1)


@contextlib.contextmanager
def dashboard():
    fleet = ShownFleet(title="t", options="", reading=lambda: planted_reading("empty"))
    with DashboardServer(NoMetrics(), fleet=fleet) as server:
        yield Served(server.url, path=urlsplit(server.url).path)


@pytest.fixture(scope="module")
def with_iam():
    with EmbeddedAws(enforce_iam=True) as aws:
        yield aws


@pytest.fixture(scope="module", params=sorted(set().union(*LISTENING.values())))
def server(request):
    """Each server of ours, running."""
    with contextlib.ExitStack() as stack:
        if request.param == "Kinesis alone":
            yield stack.enter_context(kinesis_alone())
        elif request.param == "dashboard":
            yield stack.enter_context(dashboard())
        else:
            name = "with_iam" if "IAM" in request.param else "embedded_aws"
            aws = request.getfixturevalue(name)
            if "proxy" in request.param:
                yield stack.enter_context(proxied(aws))
            else:
                yield Served(aws.endpoint_url, key=aws.key.id)


# What a probe asks: it reads one line, and has one answer, which tells nothing.
FOR_ANYBODY = {"tools/shardfleet_processes/health.py"}


def test_every_server_of_ours_is_tried_here():
    found = set()
    for folder in ("layer/python", "spark", "cdk", "functions", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(file.read_text())))
            called = [node.func for node in nodes if isinstance(node, ast.Call)]
            bases = [base for node in nodes for base in getattr(node, "bases", ())]
            names = [getattr(each, "attr", getattr(each, "id", "")) for each in called + bases]
            if any(LISTENS.match(name) for name in names):
                found.add(str(file.relative_to(ROOT)))
    assert found == set(LISTENING) | FOR_ANYBODY


def test_its_own_user_is_served(server):
    assert server.ask() == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.2:{port}",
     "localhost.evil.example:{port}", "[::1]:{port}", "0.0.0.0:{port}"],
)  # fmt: skip
def test_another_name_for_this_machine_is_refused(server, host):
    port = server.host.partition(":")[2]
    assert server.ask(Host=host.format(port=port)) == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8000", ""])
def test_a_page_of_another_origin_is_refused_even_with_the_key(server, origin):
    assert server.ask(Origin=origin) == 403
    wanted = {"Access_Control_Request_Method": "PUT", "Access_Control_Request_Headers": "a"}
    assert server.ask("OPTIONS", Origin=origin, **wanted) in (403, 501)


def test_a_page_of_the_servers_own_origin_has_no_key_to_send(server):
    assert server.ask(Origin=f"http://{server.host}") == 403


def test_two_hosts_are_refused(server):
    assert server.ask(Host=[server.host, "evil.example"]) in (400, 403)
    assert server.ask(Host=["evil.example", server.host]) in (400, 403)
    assert server.ask(Host=None) in (400, 403)


STRANGERS = [
    None,
    "",
    "Basic dGVzdDp0ZXN0",
    authorization("test"),
    authorization("testing"),
    authorization("111122223333"),
    authorization("000000000000"),
    authorization("AKIA" + "A" * 32),
    "AWS test:c2lnbmF0dXJl",
    "AWS4-HMAC-SHA256 Credential=/20261122/us-east-1/kinesis/aws4_request",
]


@pytest.mark.parametrize("given", STRANGERS)
def test_who_has_no_key_is_refused(server, given):
    if server.key is None:  # A page: its key is in the address.
        for path in ("/", "/panels", "/" + "A" * 28 + "/", "/%2e%2e/", server.path.swapcase()):
            assert server.ask(path=path, Authorization=given) == 403
        return
    assert server.ask(Authorization=given) == 403
    signed = authorization(server.key)
    assert server.ask(Authorization=[given or "", signed]) in (400, 403), "two are none"


def test_a_stranger_is_refused_before_anything_is_read_of_the_body(server):
    address = server.host.split(":")
    with socket.create_connection(address, timeout=60) as connection:
        head = f"POST / HTTP/1.1\r\nHost: {server.host}\r\nContent-Length: 50000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(12) in (b"HTTP/1.1 403", b"HTTP/1.0 403")


def test_a_key_in_the_address_is_none(server):
    if server.key is not None:
        query = f"/?X-Amz-Credential={server.key}%2F20261122%2Fus-east-1%2Fkinesis%2Faws4_request"
        query += "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=a&X-Amz-SignedHeaders=host"
        assert server.ask(path=query, Authorization=None) == 403
        assert server.ask(path=f"/?AWSAccessKeyId={server.key}", Authorization=None) == 403


@pytest.fixture(params=["embedded_aws", "with_iam"])
def account(request):
    return request.getfixturevalue(request.param)


# What findings in the wild begin with: no preflight asks about any of these when a page sends it.
SIMPLE = {"Content-Type": "text/plain", "X-Amz-Target": None}
OWN_PATHS = [
    ("GET", "/_shardfleet/health"),
    ("GET", "/_shardfleet/workers"),
    ("PUT", "/_shardfleet/lambda-environment"),
    ("PUT", "/_shardfleet/alarm-period-scale"),
    ("GET", "/_ministack/health"),
    ("POST", "/_ministack/reset"),
    ("POST", "/_ministack/config"),
    ("GET", "/_ministack/sqs/messages"),
    ("GET", "/_localstack/health"),
    ("PUT", "/_ministack/cfn-response/00000000-0000-4000-8000-000000000000"),
    ("GET", "/health"),
    ("PUT", "/latest/api/token"),
    ("GET", "/latest/meta-data/iam/security-credentials/"),
    ("GET", "/.well-known/openid-configuration"),
    ("GET", "/"),
    ("GET", "/any-bucket?list-type=2"),
    ("POST", "/2015-03-31/functions"),
    ("POST", "/2015-03-31/functions/f/invocations"),
    ("POST", "/?Action=ConfirmSubscription&TopicArn=a&Token=b"),
]


@pytest.mark.parametrize(("method", "path"), OWN_PATHS)
@pytest.mark.parametrize("key", [None, "test", "111122223333"])
def test_no_path_of_the_embedded_aws_is_open(account, method, path, key):
    served = Served(account.endpoint_url, key=account.key.id)
    stranger = {"Authorization": key and authorization(key, "lambda"), **SIMPLE}
    assert served.ask(method, path, **stranger) == 403
    evil = {**stranger, "Host": "evil.example", "Origin": "http://evil.example"}
    assert served.ask(method, path, **evil) == 403


@pytest.mark.parametrize(
    ("method", "path"), [each for each in OWN_PATHS if each[1].startswith("/_")]
)
def test_a_function_without_rights_reaches_neither_admin_nor_root(with_iam, method, path):
    served = Served(with_iam.endpoint_url, key=with_iam.key.id)
    key = role_session(with_iam)["AccessKeyId"]
    assert served.ask(method, path, Authorization=authorization(key)) == 403


def test_a_function_without_rights_has_its_roles_rights_and_no_faults_to_inject(with_iam):
    session = role_session(with_iam)
    refused = {
        "sts": None,
        "lambda": "list_functions",
        "kinesis": "list_streams",
        "iam": "list_roles",
    }
    for service, operation in refused.items():
        client = boto3.client(
            service,
            endpoint_url=with_iam.endpoint_url,
            region_name=with_iam.region,
            aws_access_key_id=session["AccessKeyId"],
            aws_secret_access_key=session["SecretAccessKey"],
            aws_session_token=session["SessionToken"],
        )
        if operation is None:
            assert ":assumed-role/nothing/" in client.get_caller_identity()["Arn"]
            continue
        with pytest.raises(client.exceptions.ClientError, match="AccessDenied"):
            getattr(client, operation)()
    served = Served(with_iam.endpoint_url, key=session["AccessKeyId"])
    for target in ("ShardfleetLocal.Faults", "ShardfleetLocal.Metrics"):
        assert served.ask(X_Amz_Target=target) == 403
        assert served.ask(X_Amz_Target=[target, KINESIS]) == 403


def role_session(aws):
    """Return keys of a role that may do nothing."""
    iam = aws.client("iam")
    trust = {
        "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]
    }
    with contextlib.suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="nothing", AssumeRolePolicyDocument=json.dumps(trust))
    role = f"arn:aws:iam::{aws.account_id}:role/nothing"
    answer = aws.client("sts").assume_role(RoleArn=role, RoleSessionName="session")
    return answer["Credentials"]


PRINTS_KEYS = """
import os
def handler(event, context):
    return {name: os.environ.get(name, "") for name in os.environ if name.startswith("AWS_")}
"""


def keys_of_a_function(aws, name):
    role_session(aws)
    client = aws.client("lambda")
    client.create_function(
        FunctionName=name,
        Runtime="python3.13",
        Role=f"arn:aws:iam::{aws.account_id}:role/nothing",
        Handler="index.handler",
        Code={"ZipFile": zipped({"index.py": PRINTS_KEYS})},
    )
    answer = json.loads(client.invoke(FunctionName=name, Payload="{}")["Payload"].read())
    client.delete_function(FunctionName=name)
    return answer


def test_a_functions_keys_are_drawn_and_say_nothing_of_the_accounts(with_iam):
    found, other = (keys_of_a_function(with_iam, "prints-keys") for _ in range(2))

    assert re.fullmatch(r"ASIA[A-Z2-7]{32}", found["AWS_ACCESS_KEY_ID"])
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        assert len(found[name]) > 30
        assert found[name] not in (other[name], with_iam.key.id, with_iam.key.secret)


def test_keys_are_drawn_anew_and_long_enough_to_be_the_secret():
    first, second = EmbeddedAws(), EmbeddedAws()
    assert first.key != second.key
    assert re.fullmatch(r"AKIA[A-Z2-7]{32}", first.key.id), "160 bits; IAM allows 16 to 128 letters"
    shape = boto3.client("iam", region_name="us-east-1").meta.service_model.shape_for(
        "accessKeyIdType"
    )
    assert shape.metadata["min"] <= len(first.key.id) <= shape.metadata["max"]
    assert first.key.id not in repr(first.key) + repr(vars(first))


def test_no_key_is_in_a_command_line_or_a_file(embedded_aws):
    """Any user may read what a process was started with."""
    line = Path(f"/proc/{embedded_aws.pid}/cmdline").read_text()
    assert embedded_aws.key.id not in line
    assert embedded_aws.key.secret not in line
    began_with = Path(f"/proc/{embedded_aws.pid}/environ").read_bytes()
    assert embedded_aws.key.id.encode() not in began_with
    folder = Path(re.search(rb"TMPDIR=([^\0]+)", began_with)[1].decode())
    written = [file for file in folder.rglob("*") if file.is_file()]
    assert written
    assert not any(embedded_aws.key.id.encode() in file.read_bytes() for file in written)
