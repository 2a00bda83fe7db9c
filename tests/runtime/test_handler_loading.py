"""From a name to a callable, and the advice when there is none."""

import functools
import sys
import textwrap
import uuid

import pytest

from shardfleet.domain.delivery.contract import HandlerContract
from shardfleet.errors import ConfigurationError, HandlerNotLoaded
from shardfleet.runtime.handler_loading import load_handler


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module of the user and return its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source, name=None):
        name = name or f"user_{uuid.uuid4().hex}"
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return name

    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        if name.startswith("user_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "contract", "is_async"),
    [
        ("def handle(batch): ...", "native", False),
        ("async def handle(batch): ...", "native", True),
        ("def handle(event, context): ...", "event", False),
        ("async def handle(event, context): ...", "event", True),
        ("def handle(batch, limit=3): ...", "native", False),
        ("def handle(records, client=3): ...", "native", False),
        ("def handle(batch=None): ...", "native", False),
        ("def handle(batch, *rest): ...", "native", False),
        ("def handle(event): ...", "native", False),
        ("def handle(event, **named): ...", "native", False),
        ("def handle(batch, /, *, flag=False): ...", "native", False),
        ("handle = lambda batch: None", "native", False),
        ("handle = [].extend", "native", False),
        ("def handle(event, context=None): ...", "event", False),
        ("def handle(_event, _context=None): ...", "event", False),
        ("def handle(event=None, context=None): ...", "event", False),
        ("def handle(e, context=None, client=3): ...", "event", False),
        ("async def handle(event, context=None): ...", "event", True),
        ("def handle(event, *rest): ...", "event", False),
        ("def handle(a, b): ...", "event", False),
        ("def handle(event, context, *more, **named): ...", "event", False),
        ("class C:\n def __call__(self, batch): ...\nhandle = C()", "native", False),
        ("class C:\n async def __call__(self, batch): ...\nhandle = C()", "native", True),
        ("class C:\n def __call__(self, event, context=None): ...\nhandle = C()", "event", False),
        ("class C:\n def m(self, event, context): ...\nhandle = C().m", "event", False),
        ("class C:\n @staticmethod\n def m(event, context): ...\nhandle = C.m", "event", False),
        ("class C:\n @classmethod\n def m(cls, batch): ...\nhandle = C.m", "native", False),
        ("import functools\ndef f(a, b): ...\nhandle = functools.partial(f, 1)", "native", False),
        (
            "import functools\ndef f(batch, *, db): ...\nhandle = functools.partial(f, db=1)",
            "native",
            False,
        ),
        (
            "import functools\ndef f(c, event, context): ...\nhandle = functools.partial(f, 1)",
            "event",
            False,
        ),
    ],
)
def test_the_contract_is_told_by_what_can_be_called(module, source, contract, is_async):
    loaded = load_handler(f"{module(source)}:handle")

    assert loaded.contract is HandlerContract(contract)
    assert loaded.is_async is is_async


def test_a_decorator_that_keeps_the_signature_is_looked_through(module):
    name = module(
        """
        import functools
        def decorated(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper
        @decorated
        def handle(event, context): ...
        """
    )
    assert load_handler(f"{name}:handle").contract is HandlerContract.EVENT


def test_a_function_inside_a_package_and_inside_an_object_is_found(module):
    package = f"user_{uuid.uuid4().hex}"
    module("class App:\n    def handle(self, batch): ...\napp = App()", f"{package}.inner")

    assert load_handler(f"{package}.inner:app.handle").contract is HandlerContract.NATIVE


@pytest.mark.parametrize(
    "decorated",
    [
        "@Logger().inject_lambda_context\ndef handle(event, context): ...",
        "@Metrics(namespace='x').log_metrics\ndef handle(event, context=None): ...",
        "@event_source(data_class=KinesisStreamEvent)\ndef handle(event, context): ...",
        "@middleware\ndef handle(event, context): ...",
    ],
)
def test_powertools_decorators_are_looked_through(module, decorated):
    imports = (
        "from aws_lambda_powertools import Logger, Metrics\n"
        "from aws_lambda_powertools.middleware_factory import lambda_handler_decorator\n"
        "from aws_lambda_powertools.utilities.data_classes import event_source\n"
        "from aws_lambda_powertools.utilities.data_classes import KinesisStreamEvent\n"
        "@lambda_handler_decorator\n"
        "def middleware(handler, event, context): return handler(event, context)\n"
    )
    assert load_handler(f"{module(imports + decorated)}:handle").contract is HandlerContract.EVENT


def test_the_contract_can_be_said(module):
    name = module("def handle(*args): return args\ndef two(event, context=None): ...")

    for contract in HandlerContract:
        assert load_handler(f"{name}:handle", contract=contract).contract is contract
        assert load_handler(f"{name}:two", contract=contract).contract is contract


@pytest.mark.parametrize("name", ["", "orders", "orders.handle", ":handle", "orders:"])
def test_a_name_of_the_wrong_form_shows_the_right_one(name):
    with pytest.raises(ConfigurationError, match=r"package\.module:function or :Class expected"):
        load_handler(name)


def test_a_missing_module_says_where_it_was_looked_for():
    with pytest.raises(ConfigurationError, match="no module 'user_nowhere'") as raised:
        load_handler("user_nowhere.inner:handle")
    assert "looked in" in str(raised.value)


def test_a_missing_dependency_of_the_users_module_is_told_apart_from_a_missing_module(module):
    name = module("import user_not_installed")

    with pytest.raises(ConfigurationError, match="needs 'user_not_installed'") as raised:
        load_handler(f"{name}:handle")
    assert "requirements.txt" in str(raised.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nraise ValueError('no settings')", r"ValueError: no settings .*line 2\)"),
        ("def handle(:", "SyntaxError"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_to_import_says_how_and_where(module, source, expected):
    with pytest.raises(ConfigurationError, match=expected):
        load_handler(f"{module(source)}:handle")


def test_a_misspelt_function_is_suggested(module):
    name = module("def handle_orders(batch): ...")

    with pytest.raises(ConfigurationError, match="did you mean handle_orders"):
        load_handler(f"{name}:handle_order")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("handle = 3", "it is a int, not a function"),
        ("def handle(): ...", r":handle\(\): it takes neither"),
        ("def handle(a, b, c): ...", r":handle\(a, b, c\): it takes neither"),
        ("def handle(batch, *, limit): ...", r":handle\(batch, \*, limit\): it takes neither"),
        ("def handle(*, event, context): ...", "it takes neither"),
        ("def handle(*args): ...", r":handle\(\*args\): it takes both"),
        ("def handle(*args, **named): ...", "it takes both"),
        ("def handle(one=1, two=2): ...", "it takes both"),
        ("def handle(batch, context=None): ...", "it takes both"),
        ("def handle(event, client=3): ...", "it takes both"),
        ("handle = max", "its parameters are not known"),
    ],
)
def test_what_is_no_handler_is_refused_with_advice(module, source, expected):
    with pytest.raises(ConfigurationError, match=expected) as raised:
        load_handler(f"{module(source)}:handle")
    assert "handler_contract" in str(raised.value)


OK = "def handle(self, batch): ..."
ALL_HOOKS = """
class handle:
    async def handle(self, batch): ...
    def started(self, shard): ...
    async def ended(self, shard): ...
    @staticmethod
    def lease_lost(shard): ...
    @classmethod
    def stopping(cls, shard, until): ...
    def _start(self): ...
    def upload(self): ...
"""


def test_a_class_is_a_handler_whose_hooks_may_be_of_any_kind(module):
    loaded = load_handler(f"{module(ALL_HOOKS)}:handle")

    assert loaded.is_class
    assert loaded.is_async
    assert loaded.contract is HandlerContract.NATIVE
    assert isinstance(loaded.function, type)


@pytest.mark.parametrize(
    ("methods", "line", "expected"),
    [
        (
            f"{OK}\n def __init__(self, bucket): ...",
            1,
            r"handle\(bucket\): the class cannot be made",
        ),
        ("def process(self, batch): ...", 1, "process is never called; did you mean handle?"),
        ("def on_start(self, shard): ...", 1, "the class has no method handle"),
        ("handle = lambda self, a, b, c: ...", 2, r"handle\(a, b, c\): it takes neither"),
        (OK, None, ""),
        (f"{OK}\n def started(self): ...", 3, r"started\(\): it is called with \(shard\)"),
        (f"{OK}\n def ended(self, a, b): ...", 3, r"ended\(a, b\): it is called with \(shard\)"),
        (f"{OK}\n def stopping(self, shard): ...", 3, r"called with \(shard, until\)"),
        (f"{OK}\n def lease_lost(self, *, shard): ...", 3, r"called with \(shard\)"),
        (f"{OK}\n def stoping(self, shard, until): ...", 1, "did you mean stopping?"),
        (f"{OK}\n def on_started(self, shard): ...", 1, "did you mean started?"),
        (f"{OK}\n def shard_ended(self, shard): ...", 1, "did you mean ended?"),
        (f"{OK}\n def initialize(self, shard): ...", 1, "did you mean started?"),
        (f"{OK}\n def shutdown_requested(self, s): ...", 1, "did you mean stopping?"),
        (f"{OK}\n def ended(self, shard): yield", 3, r"ended: it is a generator function"),
    ],
)
def test_a_class_that_is_no_handler_is_refused_with_its_line(module, methods, line, expected):
    name = module(f"class handle:\n {methods}")
    if line is None:
        assert load_handler(f"{name}:handle").is_class
        return
    with pytest.raises(HandlerNotLoaded, match=expected) as raised:
        load_handler(f"{name}:handle")
    assert raised.value.kind == "SIGNATURE"
    assert raised.value.where.endswith(f"{name}.py, line {line}")


def test_an_abstract_class_is_refused_with_what_it_lacks(module):
    source = """
import abc
class handle(abc.ABC):
    def handle(self, batch): ...
    @abc.abstractmethod
    def bucket(self): ...
"""
    with pytest.raises(HandlerNotLoaded, match="it is abstract: it lacks bucket"):
        load_handler(f"{module(source)}:handle")


@pytest.mark.parametrize("contract", ["auto", "native", "event"])
@pytest.mark.parametrize(
    "source",
    [
        "def handle(batch, context=None): yield",
        "async def handle(batch, context=None): yield",
        "class C:\n def __call__(self, batch, context=None): yield\nhandle = C()",
        "import functools\ndef f(a, b, c=1): yield\nhandle = functools.partial(f, 1)",
    ],
)
def test_a_generator_function_whose_body_would_never_run_is_refused(module, source, contract):
    name = module(source)

    with pytest.raises(ConfigurationError, match=f"{name}:handle: it is a generator function"):
        load_handler(f"{name}:handle", contract=contract)


def test_a_handler_that_does_not_fit_the_said_contract_is_refused(module):
    name = module("def one(batch): ...\ndef two(event, context): ...")

    with pytest.raises(
        ConfigurationError,
        match=r":one\(batch\): the contract event calls it with \(event, context\)",
    ):
        load_handler(f"{name}:one", contract="event")
    with pytest.raises(ConfigurationError, match=r":two\(event, context\): the contract native"):
        load_handler(f"{name}:two", contract="native")


def test_partials_of_coroutine_functions_are_asynchronous(module):
    name = module("import functools\nasync def f(a, batch): ...\nhandle = functools.partial(f, 1)")
    assert functools.partial
    assert load_handler(f"{name}:handle").is_async


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("x = 1\nimport user_not_installed", "IMPORT", 2),
        ("\n\nraise ValueError('no settings')", "IMPORT", 3),
        # The user's line, not that of the package in which it ended.
        ("import json\n\n\nSETTINGS = json.loads('{')", "IMPORT", 4),
        ("x = 1\ndef handle(:", "IMPORT", 2),
        ("\ndef handle(a, b, c): ...", "SIGNATURE", 2),
        ("\n\ndef handle(batch):\n    yield 1", "SIGNATURE", 3),
    ],
)
def test_what_cannot_be_loaded_names_the_line_of_the_user(module, source, kind, line):
    name = module(source)
    with pytest.raises(HandlerNotLoaded) as raised:
        load_handler(f"{name}:handle")

    assert raised.value.kind == kind
    assert raised.value.where.endswith(f"{name}.py, line {line}")
    assert f"{name}.py, line {line}" in str(raised.value)
    assert raised.value.where not in raised.value.said


def test_a_handler_that_is_not_there_is_no_matter_of_its_import(module):
    name = module("def handle(batch): ...")

    for wrong in (f"{name}:hanlde", "user_nowhere:handle", "nothing"):
        with pytest.raises(HandlerNotLoaded) as raised:
            load_handler(wrong)
        assert raised.value.kind == "LOAD"


def test_a_module_that_imports_when_it_is_asked_fails_like_any_other(module):
    name = module("def __getattr__(name):\n    raise KeyError('x')")
    with pytest.raises(HandlerNotLoaded, match=f"{name}.py, line 2") as raised:
        load_handler(f"{name}:handle")

    assert raised.value.kind == "IMPORT"
