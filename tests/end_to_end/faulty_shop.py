"""A deployed fleet whose handler is whatever a test writes, and what a person sees of it."""

import contextlib
import io
import json
import os
import signal

import pytest

from shardfleet_local.aws.deploy import zip_folder
from shardfleet_local.own.reloading import ALIAS
from shardfleet_ops.cli import app as application
from tests.end_to_end.cloud import deployed, wait_until

WITHIN_S = 30
MODULE = "orders"
FINE = "def handle(batch): pass\n"
SHORTLY_S = 5


class Shop:
    """The fleet, its handler, and what a person sees of it."""

    def __init__(self, fleet, code):
        self.fleet = fleet
        self._code = code

    def ask(self, *arguments):
        """Return a command's exit code and all that it says."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = application.run(list(arguments))
        return code, said.getvalue()

    def said(self, *arguments):
        """Return what a command says, on one line."""
        return " ".join(self.ask(*arguments)[1].split())

    def set(self, source):
        """
        Deploy a handler with that source, and send it a record.

        A turn that runs ends in good order: one that is killed counts as a crash, and after a few
        of them the state machine waits for minutes.
        """
        (self._code / f"{MODULE}.py").write_text(source, "utf-8")
        lambda_, name = self.fleet.client("lambda"), self.fleet.outputs["WorkerFunction"]
        published = lambda_.update_function_code(
            FunctionName=name, ZipFile=zip_folder(self._code), Publish=True
        )
        version = published["Version"]
        lambda_.update_alias(FunctionName=name, Name=ALIAS, FunctionVersion=version)
        self._end(version, signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._old(version), what="new code", within_s=SHORTLY_S)
        self._end(version, signal.SIGKILL)  # Its call does not end.
        self.fleet.client("kinesis").put_record(
            StreamName=self.fleet.outputs["StreamName"], PartitionKey="k", Data=b"{}"
        )

    def _old(self, version):
        """Return the processes that are at work with another version."""
        found = self.fleet.aws.worker_processes(self.fleet.outputs["WorkerFunction"])
        return [each for each in found if each.busy and each.version != version]

    def _end(self, version, how):
        for process in self._old(version):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, how)

    def doctor(self):
        """Return the doctor's findings; its code is 1 exactly if one of them is an error."""
        code, said = self.ask("doctor", "--json")
        found = json.loads(said)
        assert (code == 1) == any(each["severity"] == "ERROR" for each in found)
        return found

    def errors(self):
        """Return the doctor's errors by code."""
        return {each["code"]: each for each in self.doctor() if each["severity"] == "ERROR"}

    def finds(self, *codes, severity="ERROR", within_s=WITHIN_S):
        """Wait until the doctor has a finding of these codes, and return it."""

        def found():
            kept = [each for each in self.doctor() if each["severity"] == severity]
            return next((each for each in kept if each["code"] in codes), None)

        what = f"the doctor says {' or '.join(codes)}"
        return wait_until(found, what=what, within_s=within_s, fleet=self.fleet)

    def heal(self):
        self.set(FINE)
        self.ask("resume", "--all", "--yes")
        wait_until(lambda: not self.errors(), what="health", within_s=120, fleet=self.fleet)


@contextlib.contextmanager
def deployed_shop(folder, **config):
    """Deploy a fleet of one worker whose handler may be replaced, and ask commands of it."""
    code = folder / "code"
    code.mkdir()
    (code / f"{MODULE}.py").write_text(FINE, "utf-8")
    (code / "broken.py").write_text("x = 1\ndef prices(:\n", "utf-8")
    common = {"max_attempts": 2, "max_retry_ms": 300, "max_workers": 1}
    fleet_there = deployed(
        folder,
        handler=code,
        function=f"{MODULE}:handle",
        environment={},
        config=common | config,
    )
    with fleet_there as fleet, pytest.MonkeyPatch.context() as environment:
        for name, value in fleet.aws.environment().items():
            environment.setenv(name, value)
        yield Shop(fleet, code)
