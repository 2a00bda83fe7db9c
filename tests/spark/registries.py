"""
Schema registries on the loopback interface: Confluent's `GET /schemas/ids/N` and Glue's
GetSchemaVersion, whose answers botocore's model validates.
"""

import json
import struct
import threading
import uuid
import zlib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import botocore.session
from botocore.validate import validate_parameters

NOT_FOUND = {"error_code": 40403, "message": "Schema 9 not found"}  # Confluent's API reference.


class Registry:
    """
    Schemas by number.

    Attributes:
        url: of the server.
        asked: the numbers that were asked for.
        authorization: header of the last request.

    """

    def __init__(self):
        self.url = ""
        self.asked = []
        self.authorization = None
        self._answers = {}
        self._glue = botocore.session.get_session().get_service_model("glue")

    def add(self, number, schema, **more):
        self._answers[number] = {"schema": json.dumps(schema), **more}

    def confluent(self, number):
        self.asked.append(number)
        found = self._answers.get(number)
        return (200, found) if found else (404, NOT_FOUND)

    def glue(self, request):
        operation = self._glue.operation_model("GetSchemaVersion")
        validate_parameters(request, operation.input_shape)
        number = uuid.UUID(request["SchemaVersionId"]).int
        self.asked.append(number)
        found = self._answers.get(number)
        if found is None:
            return 400, {
                "__type": "EntityNotFoundException",
                "Message": "Schema version not found.",
            }
        answer = {
            "SchemaVersionId": request["SchemaVersionId"],
            "SchemaDefinition": found["schema"],
            "DataFormat": found.get("schemaType", "AVRO"),
            "VersionNumber": number,
            "Status": "AVAILABLE",
        }
        validate_parameters(answer, operation.output_shape)
        return 200, answer


@contextmanager
def registry():
    """Serve a registry."""
    found = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found.authorization = self.headers.get("Authorization")
            *_, root, ids, number = self.path.split("/")
            if (root, ids) != ("schemas", "ids"):
                self._answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})
            else:
                self._answer(*found.confluent(int(number)))

        def do_POST(self):
            assert self.headers["X-Amz-Target"] == "AWSGlue.GetSchemaVersion"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(*found.glue(json.loads(body)))

        def _answer(self, status, body):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        # A path of its own: a process keeps what it was told, and a port may come again.
        found.url = f"http://127.0.0.1:{server.server_port}/{uuid.uuid4().hex}"
        yield found
        server.shutdown()
        thread.join()


def confluent_frame(number, body):
    """Confluent's wire format: magic byte 0, the id in four bytes, network order."""
    return struct.pack(">bI", 0, number) + body


def glue_frame(number, body, *, compressed=False):
    """Glue's header: version 3, compression 0 or 5 (zlib), the version's UUID."""
    rest = zlib.compress(body) if compressed else body
    return bytes([3, 5 if compressed else 0]) + uuid.UUID(int=number).bytes + rest
