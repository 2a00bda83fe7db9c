"""What a probe sees of a process."""

import asyncio

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_processes.health import shown_health
from tests.processes.fleet import eventually


async def asked(port, request=b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def free_port():
    async def find():
        async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
            return server.sockets[0].getsockname()[1]

    return asyncio.run(find())


def test_an_address_answers_any_request_while_the_loop_goes_on_and_not_afterwards():
    port = free_port()

    async def scenario():
        async with shown_health(f"127.0.0.1:{port}"):
            answers = [await asked(port), await asked(port, b"\r\n")]
        with pytest.raises(ConnectionRefusedError):
            await asked(port)
        return answers

    for answer in asyncio.run(scenario()):
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_file_is_touched_while_the_loop_goes_on_and_gone_afterwards(tmp_path):
    file = tmp_path / "healthy"

    async def scenario():
        async with shown_health(str(file)):
            first_ns = file.stat().st_mtime_ns
            await asyncio.to_thread(eventually, lambda: file.stat().st_mtime_ns != first_ns)

    asyncio.run(scenario())
    assert not file.exists()


@pytest.mark.parametrize("where", ["127.0.0.1:1000000", "/no/such/folder/healthy"])
def test_what_cannot_be_shown_is_said(where):
    async def scenario():
        async with shown_health(where):
            pass

    with pytest.raises(ConfigurationError, match="health: "):
        asyncio.run(scenario())
