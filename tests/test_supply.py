"""What is deployed and tested with: its bill of materials, and the audit of the locks."""

import http.server
import json
import re
import threading
from pathlib import Path

import pytest

from tests import audit

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("part", ["layer", "layer/sdk", "spark"])
def test_the_bill_of_materials_lists_what_the_lock_lists(part):
    bill = json.loads((ROOT / part / "sbom.cdx.json").read_text("utf-8"))
    lock = (ROOT / part / "requirements.txt").read_text("utf-8")

    # What https://cyclonedx.org/schema/bom-1.6.schema.json requires, and the patterns it gives.
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["specVersion"] == "1.6"
    assert isinstance(bill["version"], int)
    components = bill["components"]
    assert len({each["bom-ref"] for each in components}) == len(components) > 0
    for each in [bill["metadata"]["component"], *components]:
        assert each["type"] in {"application", "library"}
        assert each["name"]
    for each in components:
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert each["hashes"]
        for digest in each["hashes"]:
            assert digest["alg"] == "SHA-256"
            assert re.fullmatch(r"[a-f0-9]{64}", digest["content"])
    assert [f"{each['name']}=={each['version']}" for each in components] == re.findall(
        r"(?m)^[\w.-]+==\S+", lock
    )
    assert sorted(h["content"] for each in components for h in each["hashes"]) == sorted(
        re.findall(r"sha256:(\w{64})", lock)
    )


@pytest.fixture
def source():
    """A source of advisories that gives the answers in `.answers`, and keeps what it is asked."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": self.server.answers}).encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    server.address = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


LOCK = "one==1.0 \\\n    --hash=sha256:00\ntwo==2.0 ; python_version > '3'\n"


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([{}, {}], 0, "2 packages audited, 0 with advisories"),
        ([{}, {"vulns": [{"id": "GHSA-x"}]}], 1, "two 2.0: GHSA-x"),
        ([{}], 1, "nothing was audited"),
    ],
)
def test_an_audit_asks_about_every_package(source, tmp_path, capsys, answers, code, said):
    lock = tmp_path / "requirements.lock"
    lock.write_text(LOCK, "utf-8")
    source.answers = answers

    assert audit.main(["--source", source.address, str(lock)]) == code

    assert said in capsys.readouterr().out
    asked = [(each["package"]["name"], each["version"]) for each in source.asked["queries"]]
    assert asked == [("one", "1.0"), ("two", "2.0")]


def test_an_audit_of_nothing_or_without_a_source_fails_and_says_so(source, tmp_path, capsys):
    lock = tmp_path / "requirements.lock"
    lock.touch()
    assert audit.main(["--source", source.address, str(lock)]) == 1
    assert "nothing was audited: the locks list no package" in capsys.readouterr().out

    lock.write_text(LOCK, "utf-8")
    assert audit.main(["--source", "http://127.0.0.1:1", str(lock)]) == 1
    assert "nothing was audited: no source" in capsys.readouterr().out


def test_all_locks_are_audited():
    for name in audit.LOCKS:
        assert len(audit.packages_of(ROOT / name)) > 1, name
