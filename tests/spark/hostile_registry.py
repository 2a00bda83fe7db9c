"""A server on loopback that answers as no registry should: raw bytes, as slowly as wanted."""

import socket
import threading
import time
from contextlib import contextmanager


class Hostile:
    """
    What is answered, and what came.

    Attributes:
        url: of the server.
        answer: the bytes of each answer; None: what is in `parts`, until nobody reads.
        parts: makes the parts of an endless answer.
        asked: the heads of the requests.

    """

    def __init__(self, port):
        self.url = f"http://me:secret@127.0.0.1:{port}"
        self.answer = b""
        self.parts = None
        self.asked = []

    def serve(self, connection):
        with connection:
            head = b""
            while b"\r\n\r\n" not in head and (more := connection.recv(65_536)):
                head += more
            if head:
                self.asked.append(head)
            try:
                connection.sendall(self.answer)
                for part in self.parts() if self.parts else ():
                    connection.sendall(part)
            except OSError:
                pass  # It has gone.


@contextmanager
def hostile_registry():
    """Serve until the end; no thread is left that anybody waits for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Hostile(server.getsockname()[1])

        def accept():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=found.serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield found
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def dripping(byte, *, every_s=0.01):
    """Return parts of one byte each, without end."""

    def parts():
        while True:
            yield byte
            time.sleep(every_s)

    return parts
