"""Certificates made up on the spot, a TLS front for a loopback server, and an HTTP proxy."""

import datetime as dt
import select
import socket
import socketserver
import ssl
import threading
from contextlib import contextmanager
from ipaddress import ip_address
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CHUNK = 1 << 16


def certificate(folder):
    """Write a certificate for 127.0.0.1 that is its own authority; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    file.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def _running(handle):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            handle(self.request)

    with _Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _relay(one, other, hosts=(b"", b"")):
    """Carry bytes both ways until either side closes; the one calls the other by another name."""
    while True:
        pending = isinstance(one, ssl.SSLSocket) and one.pending()
        ready = [one] if pending else select.select([one, other], [], [])[0]
        for source in ready:
            try:
                data = source.recv(CHUNK)
            except OSError:
                return
            if not data:
                return
            if source is one:
                other.sendall(data.replace(*hosts, 1) if hosts[0] else data)
            else:
                one.sendall(data)


@contextmanager
def tls_front(endpoint, certificate_file):
    """Yield the https endpoint of a plain one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file)
    behind = urlsplit(endpoint)

    def handle(connection):
        try:
            greeted = context.wrap_socket(connection, server_side=True)
        except (OSError, ssl.SSLError):
            return
        with greeted, socket.create_connection((behind.hostname, behind.port)) as other:
            front = "{}:{}".format(*greeted.getsockname())
            _relay(greeted, other, (front.encode(), behind.netloc.encode()))

    with _running(handle) as port:
        yield f"https://127.0.0.1:{port}"


@contextmanager
def proxy(seen, refuse=False):
    """Yield the port of an HTTP proxy; `seen` gets the first head of each connection."""

    def handle(connection):
        head = b""
        while b"\r\n\r\n" not in head:
            got = connection.recv(CHUNK)
            if not got:
                return
            head += got
        seen.append(head.decode("latin-1"))
        method, target = seen[-1].split(" ")[:2]
        if refuse:
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        where = urlsplit(target if method == "POST" else f"//{target}")
        with socket.create_connection((where.hostname, where.port)) as other:
            if method == "CONNECT":
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                other.sendall(head)
            _relay(connection, other)

    with _running(handle) as port:
        yield port
