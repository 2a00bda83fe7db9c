"""A handler's error is told by the last line of the user's own code, AWS's by its code."""

import asyncio
import functools
import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from shardfleet.errors import HandlerNotLoaded
from shardfleet.runtime.handler_errors import HandlerErrors, told_by_lambda
from shardfleet.runtime.handler_runner import ThreadHandlerRunner
from shardfleet_local.rig.probe import ledger_probe
from shardfleet_local.rig.probe.ledger_probe import witnessed
from tests.runtime.test_no_payload_in_logs import ARN, SECRET, Clock, Context, a_batch

# One line of the user's own raises, or calls what raises; it has the mark.
BODIES = {
    "of its own": ('raise ValueError(f"{secret}")  # here', "ValueError"),
    "of json": ("json.loads(secret)  # here", "JSONDecodeError"),
    "of a C extension": ("int(secret)  # here", "ValueError"),
    "of struct": ('struct.unpack("<q", secret.encode())  # here', "error"),
    "of a dictionary": ("{}[secret]  # here", "KeyError"),
    "of a library beside it": ("requestish.get(secret)  # here", "HTTPError"),
    "of a module that is a package's": ("sixish.fail(secret)  # here", "LookupError"),
    "of a library's site-packages": ("vendored.fail(secret)  # here", "LookupError"),
    "of a callback": ("json.loads('{}', object_hook=fail)", "OSError"),
    "of a callback of a library": ("requestish.call(fail, secret)", "OSError"),
    "of another thread": ("ThreadPoolExecutor(1).submit(fail, secret).result()", "OSError"),
    "of a helper": ("tools.fail(secret)", "AttributeError"),
    "of a helper that calls a library": ("tools.deep.get(secret)", "HTTPError"),
    "of recursion": ("def f(): f()  # here\n    f()", "RecursionError"),
    "of code that was made": ("exec(compile('1/0', secret, 'exec'))  # here", "ZeroDivisionError"),
    "that ends the process": ("sys.exit(secret)  # here", "SystemExit"),
    "raised from another": (
        "try: json.loads(secret)\n    except ValueError as e: raise OSError(secret) from e  # here",
        "OSError",
    ),
    "raised while another is handled": (
        "try: json.loads(secret)\n    except ValueError: raise OSError(secret)  # here",
        "OSError",
    ),
    "with a class of its own": ("raise tools.Mine(secret)  # here", "Mine"),
    "of boto3": (
        'botoish.call("PutItem", "ConditionalCheckFailedException", secret)  # here',
        "ClientError ConditionalCheckFailedException of PutItem",
    ),
    "of boto3, by its name": (
        'botoish.call("PutItem", "NotThere", secret, derived=True)  # here',
        "NotThere of PutItem",
    ),
    "of boto3, by a status": (
        'botoish.call("HeadObject", "404", secret)  # here',
        "ClientError 404 of HeadObject",
    ),
    "of boto3, made up": ("botoish.call(secret, secret, secret)  # here", "ClientError"),
    "of boto3, without an answer": (
        "e = botoish.ClientError({}, 'GetItem'); e.response = None; raise e  # here",
        "ClientError of GetItem",
    ),
    "of botocore": ("raise botoish.NoCredentialsError()  # here", "NoCredentialsError"),
}
BEHIND = {
    "a cause": (
        (
            'try: botoish.call("PutItem", "Throttling", secret)\n'
            "    except Exception as e: raise OSError(secret) from e  # here"
        ),
        "OSError ({here}), from ClientError Throttling of PutItem ({line} in handle)",
    ),
    "a cause's cause": (
        (
            'try:\n        try: botoish.call("PutItem", "Throttling", secret)\n'
            "        except Exception as e: raise KeyError(secret) from e\n"
            "    except Exception as e: raise OSError(secret) from e  # here"
        ),
        "OSError ({here}), from ClientError Throttling of PutItem ({line} in handle)",
    ),
    "a context": (
        (
            'try: botoish.call("PutItem", "Throttling", secret)\n'
            "    except Exception: raise OSError(secret)  # here"
        ),
        "OSError ({here}), from ClientError Throttling of PutItem ({line} in handle)",
    ),
    "a context that is hidden": (
        (
            'try: botoish.call("PutItem", "Throttling", secret)\n'
            "    except Exception: raise OSError(secret) from None  # here"
        ),
        "OSError ({here})",
    ),
    "a group": (
        "raise ExceptionGroup(secret, [ValueError(secret), KeyError(secret)])  # here",
        "ExceptionGroup ({here}), from ValueError (nowhere known), from KeyError (nowhere known)",
    ),
    "a group in a group": (
        "raise ExceptionGroup(secret, [ExceptionGroup(secret, [ValueError(secret)])])  # here",
        "ExceptionGroup ({here}), from ValueError (nowhere known)",
    ),
    "a circle": (
        (
            "a, b = OSError(secret), KeyError(secret); a.__cause__ = b; b.__cause__ = a; raise a"
            "  # here"
        ),
        "OSError ({here})",
    ),
}
SHAPES = ("module", "package", "installed", "zip", "namespace")
CONTRACTS = ("def", "async def")
HEAD = """
import json, struct, sys
from concurrent.futures import ThreadPoolExecutor
import botoish, requestish, sixish, vendored
{import_tools}

def fail(said):
    raise OSError(said)  # in fail

{define} handle(batch):
    secret = batch[0].partition_key
    {body}
"""
TOOLS = """
class Mine(Exception): pass

def fail(said):
    return None.nothing
"""
DEEP = "import requestish\n\ndef get(said):\n    requestish.get(said)\n"
LIBRARY = """
class HTTPError(Exception): pass

def get(said):
    raise HTTPError(said)

def call(function, said):
    function(said)
"""
FAILING = "def fail(said):\n    raise LookupError(said)\n"
# botocore lies beside the handler where it is bundled; here it is a package that uses it.
BOTO = """
from botocore.exceptions import ClientError, NoCredentialsError

def call(operation, code, said, derived=False):
    kind = type(code, (ClientError,), {}) if derived else ClientError
    raise kind({"Error": {"Code": code, "Message": said}}, operation)
"""


# One handler each, all of an asset's beside each other: what is written and imported once.
IMPORT = "pass\n\nrequestish.get('x')  # here"
HANDLERS = [*(body for body, _ in (*BODIES.values(), *BEHIND.values())), IMPORT]
SHARED = ("requestish", "sixish", "botoish", "vendored")


def write(root, *, shape, define, name):
    """Write the handlers of a shape with their helpers and packages; return (module, text) each."""
    packages = {
        "requestish/__init__.py": LIBRARY,
        "sixish.py": FAILING,
        "botoish/__init__.py": BOTO,
    }
    base, dots = ("", "") if shape == "module" else (f"{name}_package/", f"{name}_package.")
    tools = f"{name}_tools"
    import_tools = f"import {dots}{tools} as tools, {dots}{tools}.deep"
    texts = [HEAD.format(import_tools=import_tools, define=define, body=body) for body in HANDLERS]
    own = {
        **{f"{base}{name}_{number}.py": text for number, text in enumerate(texts)},
        f"{base}{tools}/__init__.py": TOOLS,
        f"{base}{tools}/deep.py": DEEP,
    }
    if base and shape != "namespace":
        own[f"{base}__init__.py"] = ""
    recorded = [*packages, *(own if shape == "installed" else ())]
    files = {
        **packages,
        **own,
        ".venv/lib/python3.11/site-packages/vendored.py": FAILING,
        "requestish-1.0.dist-info/METADATA": "Name: requestish\nVersion: 1.0\n",
        "requestish-1.0.dist-info/RECORD": "".join(f"{each},,\n" for each in recorded),
    }
    if shape == "zip":
        with zipfile.ZipFile(root, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
    else:
        for file, text in files.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text, "utf-8")
    return [(f"{dots}{name}_{number}", text) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def asset(tmp_path_factory):
    """Return a function: the folders to import from, and the handlers, of a shape and contract."""

    @functools.cache
    def made(shape, define):
        folder = tmp_path_factory.mktemp("asset")
        root = folder / "asset.zip" if shape == "zip" else folder
        name = f"orders_{shape}_{define.partition(' ')[0]}"
        handlers = write(root, shape=shape, define=define, name=name)
        # A path in an archive's folder is none to be imported from: beside it.
        vendored = folder / "elsewhere/site-packages"
        vendored.mkdir(parents=True)
        (vendored / "vendored.py").write_text(FAILING, "utf-8")
        beside = vendored if shape == "zip" else root / ".venv/lib/python3.11/site-packages"
        return (root, beside), handlers

    return made


@pytest.fixture
def fails(asset, monkeypatch):
    """Return a function: what is told of a handler with such a body."""

    def run(body, *, shape="module", define="def"):
        folders, handlers = asset(shape, define)
        module, text = handlers[HANDLERS.index(body)]
        for folder in folders:
            monkeypatch.syspath_prepend(str(folder))
        for shared in SHARED:
            monkeypatch.delitem(sys.modules, shared, raising=False)
        # A module is imported once, also where two tests have the same handler.
        monkeypatch.delitem(sys.modules, module, raising=False)
        runner = ThreadHandlerRunner(
            f"{module}:handle", contract="native", context=Context(), stream_arn=ARN, clock=Clock()
        )

        async def main():
            try:
                await runner.load()
                return (await runner.run(a_batch())).error
            finally:
                await runner.close()

        return asyncio.run(main()), f"{module.rpartition('.')[2]}.py", text

    return run


def line_of(text, mark):
    return next(n for n, line in enumerate(text.splitlines(), 1) if mark in line)


def expected_place(file, text, body):
    if "tools.fail" in body:
        return "__init__.py:5 in fail"
    if "tools.deep" in body:
        return "deep.py:4 in get"
    if "# here" not in body:
        return f"{file}:{line_of(text, '# in fail')} in fail"
    name = "f" if "def f()" in body else "handle"
    return f"{file}:{line_of(text, '# here')} in {name}"


@pytest.mark.parametrize("define", CONTRACTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", BODIES)
def test_an_error_is_told_by_the_last_line_of_the_users_own(fails, kind, shape, define):
    body, named = BODIES[kind]
    told, file, text = fails(body, shape=shape, define=define)
    assert told == f"{named} ({expected_place(file, text, body)})"
    assert SECRET not in told


@pytest.mark.parametrize("kind", BEHIND)
def test_what_an_error_was_raised_from_is_told_where_it_says_more(fails, kind):
    body, wanted = BEHIND[kind]
    told, file, text = fails(body)
    first = line_of(text, "botoish.call") if "botoish.call" in text else 0
    here = f"{file}:{line_of(text, '# here')} in handle"
    assert told == wanted.format(here=here, line=f"{file}:{first}")
    assert SECRET not in told


@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_of_the_handlers_import_is_told_by_the_users_own_line(fails, shape):
    with pytest.raises(HandlerNotLoaded) as caught:
        fails(IMPORT, shape=shape)
    (line,) = {int(caught.value.where.rpartition(" ")[2])}
    assert Path(caught.value.where.rpartition(",")[0]).name.startswith("orders_")
    assert line == len(HEAD.format(import_tools="", define="", body="").splitlines()) + 2


TRACES = {
    "a module": (
        ["/var/task/app.py:5 in handle", "/var/task/requests/api.py:9 in get"],
        "app.py:5",
    ),
    "a helper beside it": (
        ["/var/task/app.py:5 in handle", "/var/task/db.py:7 in put"],
        "db.py:7",
    ),
    "a package": (
        [
            "/var/task/orders/app.py:5 in handler",
            "/var/task/orders/store/db.py:7 in put",
            "/var/task/botocore/client.py:1094 in _make_api_call",
        ],
        "db.py:7",
    ),
    "a layer's decorator": (
        ["/opt/python/powertools/x.py:1 in wrap", "/var/task/app.py:5 in handler"],
        "app.py:5",
    ),
    "the runtime's SDK": (
        [
            "/var/task/app.py:5 in handler",
            "/var/lang/lib/botocore/a.py:1 in x",
        ],
        "app.py:5",
    ),
}


def lambda_trace(*places):
    return [
        '  File "{}", line {}, in {}\n    return SECRET\n'.format(
            *place.replace(" in ", ":").split(":")
        )
        for place in places
    ]


@pytest.mark.parametrize("kind", TRACES)
def test_a_function_of_its_own_tells_the_last_line_of_its_own(kind):
    places, wanted = TRACES[kind]
    answer = {
        "errorType": "ValueError",
        "errorMessage": SECRET,
        "stackTrace": lambda_trace(*places),
    }
    told = told_by_lambda(answer, "orders", tells_words=False)
    assert told.startswith(f"ValueError ({wanted} in ")
    assert told.endswith(", in orders)")
    assert SECRET not in told
    assert SECRET in told_by_lambda(answer, "orders", tells_words=True)


@pytest.mark.parametrize(
    ("kind", "said", "wanted"),
    [
        ("ClientError", "An error occurred (Throttling) when calling the PutItem operation: x",
         "ClientError Throttling of PutItem"),
        ("Throttling", "An error occurred (Throttling) when calling the PutItem operation: x",
         "Throttling of PutItem"),
        ("OrderError", "An error occurred (Throttling) when calling the PutItem operation: x",
         "OrderError"),
        ("ClientError", f"An error occurred ({SECRET}) when calling the jane operation: x",
         "ClientError"),
        ("ClientError", SECRET, "ClientError"),
    ],
)  # fmt: skip
def test_a_function_of_its_own_tells_a_refusal_by_code_and_operation(kind, said, wanted):
    answer = {"errorType": kind, "errorMessage": said}
    assert told_by_lambda(answer, "orders", tells_words=False) == f"{wanted} (in orders)"


@pytest.mark.parametrize("trace", [None, "x", 5, [], [None, 5], ["x"], ["Error: jane", "    at x"]])
def test_a_trace_that_is_none_says_nothing_of_a_place(trace):
    answer = {"errorType": "Error", "stackTrace": trace}
    assert told_by_lambda(answer, "orders", tells_words=False) == "Error (in orders)"


def test_a_handler_that_a_program_wraps_is_told_by_its_own_line(tmp_path, monkeypatch):
    """As `local run` does, to see what was handled."""
    (tmp_path / "wrapped_orders.py").write_text("def handle(batch):\n    raise OSError\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    orders = importlib.import_module("wrapped_orders")
    handler = witnessed(orders.handle, lambda *_, **__: None)
    errors = HandlerErrors(ledger_probe.__name__, tells_words=False)
    errors.know(handler)

    with pytest.raises(OSError) as caught:  # noqa: PT011 - it says nothing
        handler(a_batch())
    assert errors.told(caught.value) == "OSError (wrapped_orders.py:2 in handle)"
