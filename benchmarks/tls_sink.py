"""A server of TLS on this machine, in a process of its own, that swallows PutRecords requests."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import multiprocessing
import ssl
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_STARTED_S = 60


@contextmanager
def tls_sink() -> Iterator[tuple[str, Path]]:
    """
    Yield its endpoint and the certificate to trust.

    Each record is answered with the checksum of its data in base64 as its sequence number, so that
    two clients who sent the same have the same answers.
    """
    with TemporaryDirectory() as folder:
        file = _certificate(Path(folder))
        ours, its = multiprocessing.Pipe()
        process = multiprocessing.Process(target=_serve, args=(file, its), daemon=True)
        process.start()
        try:
            assert ours.poll(_STARTED_S), "the server did not start"
            yield f"https://127.0.0.1:{ours.recv()}", file
        finally:
            process.terminate()
            process.join()


def _certificate(folder: Path) -> Path:
    """Write a certificate for 127.0.0.1 that is its own authority, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    authority = x509.BasicConstraints(ca=True, path_length=None)
    builder = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(address, critical=False)
        .add_extension(authority, critical=True)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / "certificate.pem"
    made = builder.sign(key, hashes.SHA256())
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file


def _serve(file: Path, started: Connection) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    async def main() -> None:
        server = await asyncio.start_server(_converse, "127.0.0.1", 0, ssl=context, limit=1 << 20)
        started.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        named = {name.lower(): value for name, value in fields.items()}
        if named.get(b"expect") == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = _answer(await reader.readexactly(int(named[b"content-length"])))
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()


def _answer(request: bytes) -> bytes:
    results = [
        {"ShardId": "shardId-0", "SequenceNumber": str(zlib.crc32(record["Data"].encode()))}
        for record in json.loads(request)["Records"]
    ]
    return json.dumps({"FailedRecordCount": 0, "Records": results}).encode()
