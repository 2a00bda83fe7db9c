"""
Starting and stopping the embedded AWS: one child process, loopback only, nothing left behind.

    with EmbeddedAws() as aws:
        aws.client("kinesis").create_stream(StreamName="clicks", ShardCount=4)
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import boto3
from botocore.config import Config

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_local.access import AccessKey
from shardfleet_local.aws.settings import AwsBehaviour, ServerSettings

START_LIMIT_S = 60.0  # ours
"""Longest wait for the server's first answer; 0.6 s on an idle machine."""

STOP_LIMIT_S = 10.0  # ours
"""Longest wait for the server to end by itself before it is killed."""

LOG_TAIL_LINES = 40  # ours
"""How much of the server's log an error shows."""

ACCOUNT_ID = "111122223333"
"""The account unless another is asked for: the one of AWS's own examples."""

KEPT_FROM_CALLER = (
    "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "SSL_CERT_FILE",
)  # fmt: skip
"""What the server inherits of the caller's environment: no credentials, no settings of AWS."""


class EmbeddedAwsFailed(ShardfleetError):
    """The embedded AWS could not be started, or it does not answer; the message has its log."""


@dataclass(frozen=True, order=True)
class WorkerProcess:
    """One live Lambda process; `busy` while it serves an invocation, `frozen` in between."""

    pid: int
    function_name: str
    version: str
    busy: bool
    frozen: bool


class EmbeddedAws:
    """
    An AWS account in a child process, for whoever has `key`.

    It is drawn anew, unless another is set before the start.

    Args:
        region: the region of everything in it.
        account_id: 12 digits.
        enforce_iam: whether the policies of roles are enforced; Lambda functions and schedules
            then have their roles' permissions only, the clients made here are the account's root.
        lambda_environment: variables added to every Lambda process, visible in no configuration.
        behaviour: how the services behave (default: quotas on, and kind).
        port: of the one endpoint; 0 takes a free one.

    """

    def __init__(
        self,
        *,
        region: str = "us-east-1",
        account_id: str = ACCOUNT_ID,
        enforce_iam: bool = False,
        lambda_environment: Mapping[str, str] | None = None,
        behaviour: AwsBehaviour | None = None,
        port: int = 0,
    ) -> None:
        self.region = region
        self.account_id = account_id
        self.key = AccessKey()
        self._enforce_iam = enforce_iam
        self._lambda_environment = dict(lambda_environment or {})
        self._behaviour = behaviour or AwsBehaviour()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._wanted_port = port
        self._port = self._tls_port = 0
        self._session: boto3.session.Session | None = None
        self._sessions = threading.Lock()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The one endpoint of all services."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def tls_endpoint_url(self) -> str:
        """The endpoint with TLS, if the behaviour has a certificate."""
        return f"https://127.0.0.1:{self._tls_port}"

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        return self._process.pid if self._process else None

    def environment(self) -> dict[str, str]:
        """Return what another process needs in its environment to use this account."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            **self.key.environment(),
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def client(self, service: str, config: Config | None = None) -> Any:
        """Make a boto3 client of this account."""
        direct = Config(proxies={})
        # A session costs more than a client, and makes one at a time (boto3 guide, sessions).
        with self._sessions:
            self._session = self._session or boto3.session.Session()
            return self._session.client(
                service,  # type: ignore[call-overload]
                endpoint_url=self.endpoint_url,
                region_name=self.region,
                aws_access_key_id=self.key.id,
                aws_secret_access_key=self.key.secret,
                config=direct.merge(config) if config else direct,
            )

    def start(self) -> Self:
        """
        Start the server and wait until it answers. Raises EmbeddedAwsFailed with its log.

        Raises ConfigurationError if the port is taken.
        """
        sockets = self._listen()
        folder = Path(tempfile.mkdtemp(prefix="shardfleet-aws-"))
        self._folder = folder
        with contextlib.ExitStack() as open_sockets:
            for each in sockets:
                open_sockets.enter_context(each)
            settings = ServerSettings(
                folder=folder,
                port=self._port,
                account_id=self.account_id,
                region=self.region,
                access_key_id=self.key.id,
                secret_access_key=self.key.secret,
                enforce_iam=self._enforce_iam,
                behaviour=self._behaviour,
                lambda_environment=self._lambda_environment,
                tls_port=self._tls_port,
            )
            descriptors = [each.fileno() for each in sockets]
            with self._log_file().open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "shardfleet_local.aws.server",
                     *map(str, descriptors)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._server_environment(),
                    pass_fds=descriptors,
                    process_group=0,
                )  # fmt: skip
        try:
            self._tell(settings.to_json())
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def _listen(self) -> list[socket.socket]:
        """Return what the server listens to: plainly, and with TLS if there is a certificate."""
        try:
            listening = socket.create_server(("127.0.0.1", self._wanted_port), backlog=1024)  # ours
        except OSError as error:
            raise ConfigurationError(
                f"port {self._wanted_port}: {error.strerror}; name another one, or 0 for any that "
                "is free"
            ) from error
        self._port = listening.getsockname()[1]
        if not self._behaviour.certificate:
            return [listening]
        with_tls = socket.create_server(("127.0.0.1", 0), backlog=1024)  # ours
        self._tls_port = with_tls.getsockname()[1]
        return [listening, with_tls]

    def stop(self) -> None:
        """End the server and every Lambda process, and remove the private folder."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(timeout=STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()  # The kernel ends its Lambda processes with it.
                process.wait()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def worker_processes(self, function_name: str | None = None) -> list[WorkerProcess]:
        """List the live Lambda processes, of one function or of all."""
        query = {"function": function_name} if function_name else {}
        found = self.admin("GET", "workers", query=query)
        return sorted(WorkerProcess(**each) for each in found)

    def set_lambda_environment(self, variables: Mapping[str, str]) -> None:
        """Replace what is injected into Lambda processes that start from now on."""
        self.admin("PUT", "lambda-environment", body=dict(variables))

    def scale_alarm_periods(self, scale: float) -> None:
        """Shorten or lengthen the periods of all alarms, from now on; whole seconds at least."""
        self.admin("PUT", "alarm-period-scale", body=scale)

    def set_job_runs(
        self, *, runs_s: float | None = None, succeeds: bool = True, stops_s: float = 0.0
    ) -> None:
        """
        Set what job runs of EMR Serverless do that begin from now on; none executes anything.

        They end by themselves after `runs_s` (None: never), and take `stops_s` of the grace that
        they are given when they are cancelled.
        """
        work = {"runs_s": runs_s, "succeeds": succeeds, "stops_s": stops_s}
        self.admin("PUT", "job-runs", body=work)

    def admin(
        self, method: str, name: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        """Call an operation under `/_shardfleet/`. Raises EmbeddedAwsFailed with its message."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)  # ours
        try:
            payload = None if body is None else json.dumps(body)
            path = f"/_shardfleet/{name}?{urlencode(query or {})}"
            connection.request(method, path, payload, self._signed())
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EmbeddedAwsFailed(
                f"The embedded AWS does not answer at {self.endpoint_url}: {error}\n{self.log()}"
            ) from error
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise EmbeddedAwsFailed(f"{method} {name}: {answer.get('message')}")
        return answer

    def _signed(self) -> dict[str, str]:
        return {"Authorization": self.key.authorization()}

    def log(self) -> str:
        """Return the end of the server's log."""
        try:
            text = self._log_file().read_text(encoding="utf-8", errors="replace")
        except (OSError, EmbeddedAwsFailed):
            return "(the server's log is gone)"
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    def _log_file(self) -> Path:
        if self._folder is None:
            raise EmbeddedAwsFailed("The embedded AWS has not been started")
        return self._folder / "server.log"

    def _server_environment(self) -> dict[str, str]:
        assert self._folder is not None
        inherited = {name: os.environ[name] for name in KEPT_FROM_CALLER if name in os.environ}
        if path := inherited.get("PYTHONPATH"):  # An empty entry would be the current folder.
            inherited["PYTHONPATH"] = os.pathsep.join(filter(None, path.split(os.pathsep)))
        return {
            **inherited,
            "HOME": str(self._folder),
            "TMPDIR": str(self._folder),
            "LANG": "C.UTF-8",
            "NO_PROXY": "127.0.0.1,localhost",
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self._port),
            "MINISTACK_HOST": "127.0.0.1",
            "MINISTACK_ACCOUNT_ID": self.account_id,
            "MINISTACK_REGION": self.region,
            "AUTH": "true" if self._enforce_iam else "false",
            "SFTP_ENABLED": "0",
            "IOT_MTLS_ENABLED": "0",
            "LOG_LEVEL": "WARNING",
        }

    def _tell(self, settings: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It has ended: what it said is told.
            self._process.stdin.write(f"{settings}\n".encode())
            self._process.stdin.flush()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EmbeddedAwsFailed(
                    "The embedded AWS ended while starting "
                    f"(exit code {self._process.returncode}):\n{self.log()}"
                )
            if self._answers():
                return
            time.sleep(0.02)
        raise EmbeddedAwsFailed(
            f"The embedded AWS did not answer within {START_LIMIT_S:.0f} s:\n{self.log()}"
        )

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=1)
        try:
            connection.request("GET", "/_shardfleet/health", headers=self._signed())
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
