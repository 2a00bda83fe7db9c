"""
A TLS server in a process of its own that answers GetRecords, PutRecords and ListShards.

    with serving({"a": body}) as (endpoint, authority): ...

GetRecords is answered with the finished body that the shard iterator names. PutRecords swallows the
records and answers each with the shard that its partition key belongs to, one of four, and the
checksum of its data as its sequence number, so that two clients who sent the same have the same
answers; an answer is in the encoding of its request, JSON or CBOR. The certificate is made on the
spot; `authority` is the file to trust it by.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import multiprocessing
import os
import socketserver
import ssl
import tempfile
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import boto3
import cbor2
from botocore.config import Config
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from mypy_boto3_kinesis.client import KinesisClient

from shardfleet.adapters.kinesis.wire import KinesisWire, open_wire

HOST = "127.0.0.1"
STARTED_S = 60
SHARDS = 4
SHARD_BITS = SHARDS.bit_length() - 1
JSON, CBOR = "application/x-amz-json-1.1", "application/x-amz-cbor-1.1"
HEAD = "HTTP/1.1 200 OK\r\ncontent-type: {}\r\ncontent-length: {}\r\n\r\n"


@contextmanager
def serving(bodies: Mapping[str, bytes] | None = None) -> Iterator[tuple[str, Path]]:
    """Run the server; yield its endpoint and the certificate to trust."""
    with tempfile.TemporaryDirectory() as folder:
        pem = certificate_in(Path(folder))
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(dict(bodies or {}), str(pem), theirs), daemon=True
        )
        process.start()
        try:
            assert ours.poll(STARTED_S), "the server did not start"
            yield f"https://{HOST}:{ours.recv()}", pem
        finally:
            process.terminate()
            process.join()


def boto3_and_wire(
    endpoint: str, certificate: Path, stream_arn: str
) -> tuple[KinesisClient, KinesisWire]:
    """Return both ways to the server: boto3's client, and the own wire that does as it would."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_CA_BUNDLE": str(certificate),
    }
    session = boto3.session.Session(region_name="us-east-1")
    config = Config(retries={"total_max_attempts": 1}, read_timeout=60)
    client = session.client("kinesis", endpoint_url=endpoint, config=config)
    wire = open_wire(stream_arn, client=client, session=session._session)  # noqa: SLF001 - boto3's
    assert wire is not None
    return client, wire


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    disable_nagle_algorithm = True
    request_queue_size = 128


def _serve(bodies: dict[str, bytes], pem: str, ready: Connection) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    finished = {name: _answer(body) for name, body in bodies.items()}

    class Handler(socketserver.StreamRequestHandler):
        disable_nagle_algorithm = True

        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def handle(self) -> None:
            while self.rfile.readline():
                fields = {}
                while line := self.rfile.readline().strip():
                    name, _, value = line.partition(b":")
                    fields[name.lower()] = value.strip()
                if fields.get(b"expect") == b"100-continue":
                    self.request.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = self.rfile.read(int(fields[b"content-length"]))
                if fields[b"content-type"] == CBOR.encode():
                    records = cbor2.loads(body)["Records"]
                    self.request.sendall(_answer(cbor2.dumps(_checksums(records)), CBOR))
                    continue
                asked = json.loads(body)
                if "ShardIterator" in asked:
                    self.request.sendall(finished[asked["ShardIterator"]])
                elif "Records" in asked:
                    records = [
                        each | {"Data": b64decode(each["Data"])} for each in asked["Records"]
                    ]
                    self.request.sendall(_answer(json.dumps(_checksums(records)).encode()))
                else:
                    self.request.sendall(_answer(_listing()))

    with _Server((HOST, 0), Handler) as server:
        ready.send(server.server_address[1])
        server.serve_forever()


def _answer(body: bytes, content_type: str = JSON) -> bytes:
    return HEAD.format(content_type, len(body)).encode() + body


def _checksums(records: list[dict[str, Any]]) -> dict[str, Any]:
    results = [
        {
            "ShardId": _shard_id(_shard_of(record["PartitionKey"])),
            "SequenceNumber": str(zlib.crc32(record["Data"])),
        }
        for record in records
    ]
    return {"FailedRecordCount": 0, "Records": results}


def _shard_of(partition_key: str) -> int:
    digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
    return digest[0] >> 8 - SHARD_BITS


def _shard_id(number: int) -> str:
    return f"shardId-{number:012d}"


def _listing() -> bytes:
    width = 2**128 // SHARDS
    shards = [
        {
            "ShardId": _shard_id(number),
            "HashKeyRange": {
                "StartingHashKey": str(width * number),
                "EndingHashKey": str(width * (number + 1) - 1),
            },
            "SequenceNumberRange": {"StartingSequenceNumber": "0"},
        }
        for number in range(SHARDS)
    ]
    return json.dumps({"Shards": shards}).encode()


def certificate_in(folder: Path) -> Path:
    """Write key and certificate of the loopback address, its own authority; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + secret)
    return file
