"""What registries answer, and what is made of it."""

import uuid

import pytest

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_spark.aws.schema_registries import ConfluentRegistry, GlueRegistry, NoSuchSchema
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
    with pytest.raises(NoSuchSchema, match="is PROTOBUF, and Avro is needed"):
        asked.schema_of(name(8))
    with pytest.raises(NoSuchSchema, match="is not in the registry"):
        asked.schema_of(name(9))


def test_an_address_that_is_no_registrys_is_no_missing_schema(there):
    with pytest.raises(ShardfleetError, match="HTTP 404") as found:
        ConfluentRegistry(f"{there.url}/elsewhere/x?").schema_of("a/b")
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
