"""With what a function is called, told by what it takes; the same rule for one written down."""

import ast
import inspect

import pytest

from shardfleet.domain.delivery.contract import (
    HandlerContract,
    check_signature,
    check_written,
    contract_of,
    signature_of,
)
from shardfleet.domain.delivery.hooks import Hook, check_class_written, check_names
from shardfleet.errors import HandlerNotLoaded

HEADS = [
    "",
    "a",
    "a, b",
    "a, b=1",
    "a=1, b=2",
    "a, /, b",
    "a, b=1, /, c=2",
    "*args",
    "a, *args",
    "*, c",
    "*, c=1, d",
    "a, *args, c, d=1, **more",
    "**more",
    "a=1, /, *, b, **more",
]


def written(head):
    (node,) = ast.parse(f"def f({head}): pass").body
    return node


@pytest.mark.parametrize("head", HEADS)
def test_a_signature_that_is_written_down_is_python_s_own(head):
    names = {}
    exec(f"def f({head}): pass", names)  # noqa: S102 - Python's own reading of it.
    found, own = signature_of(written(head).args), inspect.signature(names["f"])
    assert [(p.name, p.kind) for p in found.parameters.values()] == [
        (p.name, p.kind) for p in own.parameters.values()
    ]
    for mine, its in zip(found.parameters.values(), own.parameters.values(), strict=True):
        assert (mine.default is mine.empty) == (its.default is its.empty)


NATIVE, EVENT = HandlerContract.NATIVE, HandlerContract.EVENT


@pytest.mark.parametrize(
    ("head", "contract"),
    [
        ("a", NATIVE),
        ("event", NATIVE),  # One argument can be nothing but the batch.
        ("a, b", EVENT),
        ("batch, client", EVENT),
        ("event, context", EVENT),
        ("batch, client=None", NATIVE),
        ("records, client=None", NATIVE),
        ("_event, _context=None", EVENT),
        ("x, context=None", EVENT),
        ("event=None, *args", EVENT),
        ("batch=None, client=None", NATIVE),
        ("batch, context=None", None),
        ("event, client=None", None),
        ("*args", None),
        ("a=1, b=2", None),
        ("", None),
        ("a, b, c", None),
        ("a, *, c", None),
    ],
)
def test_names_tell_where_both_would_do_and_what_they_do_not_tell_is_refused(head, contract):
    signature = signature_of(written(head).args)
    if contract:
        assert contract_of(signature, "auto", name="m:f", where="/m.py, line 1") is contract
        check_written(written(head), "auto", name="m:f", where="")
    else:
        with pytest.raises(HandlerNotLoaded, match=r"handler m:f\(.*handler_contract") as refused:
            contract_of(signature, "auto", name="m:f", where="/m.py, line 1")
        assert (refused.value.kind, refused.value.where) == ("SIGNATURE", "/m.py, line 1")
        with pytest.raises(HandlerNotLoaded):
            check_written(written(head), "auto", name="m:f", where="")


@pytest.mark.parametrize(
    ("head", "native", "event"),
    [
        ("a", True, False),
        ("a, b", False, True),
        ("*args", True, True),
        ("batch, context=1", True, True),
    ],
)
def test_what_is_asked_for_is_taken_if_it_can_be_called_so(head, native, event):
    signature = signature_of(written(head).args)
    for wanted, fits in ((NATIVE, native), (EVENT, event)):
        if fits:
            assert contract_of(signature, str(wanted), name="m:f", where="") is wanted
        else:
            with pytest.raises(HandlerNotLoaded, match=f"the contract {wanted} calls it with"):
                contract_of(signature, str(wanted), name="m:f", where="")


def test_a_decorated_function_and_an_unknown_contract_are_somebody_else_s_to_judge():
    (node,) = ast.parse("@d\ndef f(a, b, c): pass").body
    check_written(node, "auto", name="m:f", where="")
    check_signature(signature_of(node.args), "other", name="m:f", where="")
    for wanted in ("auto", "native", "event"):
        with pytest.raises(HandlerNotLoaded):
            check_signature(signature_of(node.args), wanted, name="m:f", where="")


def test_hooks_are_called_with_the_shard_and_the_last_chance_with_its_end_too():
    """The KCL's shutdownRequested is asked before the lease is given up."""
    assert {hook: hook.given for hook in Hook} == dict.fromkeys(Hook, ("shard",)) | {
        Hook.STOPPING: ("shard", "until")
    }
    assert [hook for hook in Hook if hook.is_last] == [Hook.LEASE_LOST, Hook.STOPPING]


@pytest.mark.parametrize(
    ("method", "meant"),
    [
        ("process", "handle"),
        ("init", "started"),
        ("shard_ended", "ended"),
        ("stop", "stopping"),
        ("shutdown", "stopping"),
        ("stoping", "stopping"),
        ("lease_losts", "lease_lost"),
        ("handler", "handle"),
    ],
)
def test_a_method_that_is_nearly_a_hook_is_refused_with_what_is_meant(method, meant):
    with pytest.raises(HandlerNotLoaded, match=f"method {method} .*did you mean {meant}"):
        check_names(["handle", method], name="m:C", where="")


def test_other_methods_are_the_class_s_own_and_handle_must_be_there():
    check_names(["handle", "flush", "count", *Hook], name="m:C", where="")
    with pytest.raises(HandlerNotLoaded, match="no method handle"):
        check_names(["started", "flush"], name="m:C", where="")


def judged(body, head="class C:", wanted="auto"):
    lines = "\n".join(f"    {line}" for line in body.split("; "))
    (node,) = ast.parse(f"{head}\n{lines}").body
    check_class_written(node, wanted, name="m:C", where="/m.py, line 1")


@pytest.mark.parametrize(
    "body",
    [
        "def handle(self, batch): pass",
        "async def handle(self, batch): pass",
        "handle = made_elsewhere",
        "def handle(*args): pass",
        "def __init__(self, a=1): pass; def handle(self, batch): pass",
        "@d; def started(self, a, b, c): pass; def handle(self, batch): pass",
        "def _process(self): pass; def handle(self, event, context): pass",
        "def handle(self, batch): pass; def stopping(self, shard, until): pass",
    ],
)
def test_a_class_that_a_worker_could_make_and_call_passes(body):
    judged(body)


@pytest.mark.parametrize(
    ("body", "told", "line"),
    [
        ("def process(self, batch): pass", "did you mean handle", 1),
        ("def other(self): pass", "no method handle", 1),
        ("def handle(self, a, b, c): pass", r"m:C.handle\(a, b, c\)", 2),
        ("x = 1; def handle(self, batch): pass; def __init__(self, a): pass", "made without", 4),
        ("def handle(self, b): pass; def ended(self): pass", r"called with \(shard\)", 3),
        ("def handle(self, b): pass; def stopping(self, s): pass", r"\(shard, until\)", 3),
    ],
)
def test_one_that_it_could_not_is_refused_by_the_line(body, told, line):
    with pytest.raises(HandlerNotLoaded, match=told) as refused:
        judged(body)
    assert refused.value.where == f"/m.py, line {line}"


@pytest.mark.parametrize("head", ["class C(Base):", "class C(metaclass=M):", "@d\nclass C:"])
def test_what_may_have_more_than_is_seen_here_is_left_to_the_worker(head):
    judged("def other(self): pass", head)
