"""`shardfleet dashboard`: what keeps it from its port is one message."""

import socket
from types import SimpleNamespace

from shardfleet_local.dashboard import gathering
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import dashboard
from shardfleet_ops.cli.fleets import DeployedFleet
from tests.cli.conftest import CONFIG


def test_a_port_in_use_is_one_message(monkeypatch, capsys):
    deployed = SimpleNamespace(hours=3)
    monkeypatch.setattr(gathering.Gatherer, "dashboard", lambda _: deployed)
    found = DeployedFleet(
        config=CONFIG, manager="manager", resources=[("AWS::CloudWatch::Dashboard", "clicks")]
    )
    monkeypatch.setattr(dashboard, "find_fleet", lambda _: found)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert application.run(["dashboard", "--port", str(port)]) == application.EXIT_WRONG_INPUT
    assert capsys.readouterr().err == (
        f"shardfleet: --port {port}: Address already in use; name another one, or 0 for any that "
        "is free\n"
    )
