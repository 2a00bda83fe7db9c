"""What registries answer, and what is made of it."""

import sys
import tracemalloc
import uuid

import pytest

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_spark.aws.schema_registries import (
    AnswerBounds,
    ConfluentRegistry,
    GlueRegistry,
    KeptSchemas,
    NoSuchSchema,
)
from tests.spark.hostile_registry import dripping, hostile_registry
from tests.spark.registries import registry


@pytest.fixture
def there():
    with registry() as found:
        found.add(7, {"type": "int"})
        found.add(8, {}, schemaType="PROTOBUF")
        yield found


def confluent(found):
    return ConfluentRegistry(found.url), str


def glue(found):
    client = AccountClients(Access(region="eu-central-1", endpoint=found.url)).glue
    return GlueRegistry(client), lambda number: str(uuid.UUID(int=number))


@pytest.mark.parametrize("made", [confluent, glue])
def test_a_schema_is_found_by_its_id(there, made):
    asked, name = made(there)

    assert asked.schema_of(name(7)) == '{"type": "int"}'
    with pytest.raises(NoSuchSchema, match="is not of the type AVRO"):
        asked.schema_of(name(8))
    with pytest.raises(NoSuchSchema, match="is not in the registry"):
        asked.schema_of(name(9))


def test_an_address_that_is_no_registrys_is_no_missing_schema(there):
    with pytest.raises(ShardfleetError, match="HTTP 404") as found:
        ConfluentRegistry(f"{there.url}/elsewhere").schema_of("a/b")
    assert not isinstance(found.value, NoSuchSchema)
    with pytest.raises(ConfigurationError, match="a URL such as"):
        ConfluentRegistry("registry:8081")


def test_user_and_password_are_sent_and_never_shown(there):
    url = there.url.replace("http://", "http://me:pass%40word@")

    ConfluentRegistry(url).schema_of("7")
    # RFC 7617: base64 of "me:pass@word".
    assert there.authorization == "Basic bWU6cGFzc0B3b3Jk"

    with pytest.raises(ShardfleetError) as found:
        ConfluentRegistry(url).schema_of("a/b")
    assert "word" not in str(found.value)


# --- registries that mean harm

LEAK = b"what-a-body-holds"
BOUNDS = AnswerBounds(size_bytes=10_000, whole_s=0.5)


def whole(body, status=b"200 OK", *head):
    lines = (b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *head)
    return b"\r\n".join((*lines, b"", body))


def nested(levels):
    return b'{"schema": "x", "deep": ' + b"[" * levels + b"]" * levels + b"}"


ANSWERS = {
    "a redirect": (
        whole(LEAK, b"302 Found", b"Location: http://127.0.0.1:9/x"),
        "HTTP 302, a redir",
    ),
    "permanent": (whole(LEAK, b"308 x", b"Location: http://127.0.0.1:9/x"), "HTTP 308, a redirect"),
    "an error": (whole(LEAK, b"500 what-a-body-holds"), "HTTP 500"),
    "no JSON": (whole(LEAK), "no JSON of a schema"),
    "no schema": (whole(b'{"subject": "what-a-body-holds"}'), "lacks `schema`"),
    "another type": (whole(b'{"schema": ["what-a-body-holds"]}'), "no JSON of a schema"),
    "no UTF-8": (whole(b'{"schema": "\xff"}'), "no JSON of a schema"),
    "depth": (whole(nested(4_000)), "no JSON of a schema"),
    "length": (whole(b'{"schema": "%s"}' % (LEAK * 1_000)), "more than 10000 bytes"),
    "short": (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + LEAK, "no whole HTTP answer"),
    "cut": (b"HTTP/1.1 200 OK\r\n\r\n" + b'{"schema": "what-a-body-ho', "no JSON of a schema"),
    "two lengths": (whole(LEAK, b"200 OK", b"Content-Length: 3"), "no whole HTTP answer"),
    "no length": (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n" + LEAK, "no whole HTTP answer"),
    "odd status": (b"HTTP/1.1 what-a-body-holds\r\n\r\n", "no whole HTTP answer"),
    "no HTTP": (LEAK + b"\r\n\r\n", "no whole HTTP answer"),
    "nothing": (b"", "no whole HTTP answer"),
    "a long line": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, "no whole HTTP answer"),
    "many heads": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 40_000, "no whole HTTP answer"),
    "a bad chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nwhat-a-body-holds\r\n",
        "no whole HTTP answer",
    ),
    "packed": (whole(LEAK, b"200 OK", b"Content-Encoding: gzip"), "compressed"),
}
ENDLESS = {
    "a head that drips": (b"", dripping(b"H"), "no whole answer in 0.5 s"),
    "a body that drips": (
        b"HTTP/1.1 200 OK\r\n\r\n",
        dripping(b" "),
        "no whole answer in 0.5 s",
    ),
    "a body that floods": (
        b"HTTP/1.1 200 OK\r\n\r\n",
        dripping(b" " * 65_536, every_s=0),
        "more than 10000 bytes",
    ),
    "answers before the answer": (
        b"",
        dripping(b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0),
        "no whole answer in 0.5 s",
    ),
}


@pytest.fixture
def hostile():
    with hostile_registry() as found:
        yield found


def refused(hostile, match):
    with pytest.raises(ShardfleetError, match=match) as found:
        ConfluentRegistry(hostile.url, bounds=BOUNDS).schema_of("7")
    assert not isinstance(found.value, NoSuchSchema)
    chain = [found.value, found.value.__cause__]
    for each in filter(None, chain):
        assert LEAK.decode() not in repr(each)
    host = hostile.url.rpartition("@")[2]
    assert str(found.value).startswith(f"registry {host}: ")
    assert "secret" not in repr(chain)
    assert len(hostile.asked) == 1


@pytest.mark.parametrize("about", ANSWERS)
def test_what_is_no_answer_of_a_registry_is_told_by_host_and_kind(hostile, about):
    hostile.answer, said = ANSWERS[about]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # A library that other tests use allows 10,000.
    try:
        refused(hostile, said)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("about", ENDLESS)
def test_an_answer_without_end_has_one_within_the_bounds(hostile, about):
    hostile.answer, hostile.parts, said = ENDLESS[about]
    tracemalloc.start()
    try:
        refused(hostile, said)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_password_goes_to_no_other_host(hostile, there):
    head = f"Location: {there.url}/schemas/ids/7".encode()
    hostile.answer = whole(b"", b"307 Temporary Redirect", head)
    refused(hostile, "HTTP 307, a redirect, which is not followed")
    assert there.asked == []
    assert there.authorization is None


def test_a_registry_that_is_not_there_is_named():
    with pytest.raises(ShardfleetError, match=r"registry 127\.0\.0\.1:9: no connection"):
        ConfluentRegistry("http://me:secret@127.0.0.1:9").schema_of("7")


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "http://h:x", "http://[::1"])
def test_what_is_no_address_of_a_registry_is_refused(url):
    with pytest.raises(ConfigurationError, match="a URL such as"):
        ConfluentRegistry(url)


class Asked:
    """A registry that counts; it has the even ids."""

    def __init__(self):
        self.ids = []

    def schema_of(self, schema_id):
        self.ids.append(schema_id)
        if int(schema_id) % 2:
            raise NoSuchSchema(f"{schema_id} is not there")
        return f"schema {schema_id}"


def test_a_process_asks_for_an_id_once_and_for_an_unknown_one_again_after_a_while():
    asked, now_s = Asked(), [0.0]
    kept = KeptSchemas(asked, now_s=lambda: now_s[0], unknown_s=60)
    for now_s[0], expected in ((0, ["2", "3"]), (59, ["2", "3"]), (60, ["2", "3", "3"])):
        assert kept.schema_of("2") == "schema 2"
        with pytest.raises(NoSuchSchema, match="3 is not there"):
            kept.schema_of("3")
        assert asked.ids == expected


def test_what_a_process_keeps_of_a_registry_is_bounded():
    kept = KeptSchemas(Asked())
    for number in range(0, 20_000, 2):
        kept.schema_of(str(number))
    assert len(kept._known) == 1_000
    assert kept.schema_of("19998") == "schema 19998"
    assert len(kept._registry.ids) == 10_000


class LackingGlue:
    class exceptions:  # noqa: N801 - boto3's
        EntityNotFoundException = KeyError

    def __init__(self, answer):
        self.answer = answer

    def get_schema_version(self, **_):
        return self.answer


@pytest.mark.parametrize("lacking", ["DataFormat", "SchemaDefinition"])
def test_what_glue_leaves_out_is_no_schema_and_no_missing_one(lacking):
    answer = {"SchemaDefinition": "{}", "DataFormat": "AVRO"}
    del answer[lacking]
    with pytest.raises(ShardfleetError, match=f"lacks {lacking}") as found:
        GlueRegistry(LackingGlue(answer)).schema_of("x")
    assert not isinstance(found.value, NoSuchSchema)
