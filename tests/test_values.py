"""A dataclass of `shardfleet.values` is one of the standard library's in all that can be seen."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys

import pytest

from shardfleet import values

HOW = [
    {},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"slots": True},
    {"slots": True, "eq": False},
    {"frozen": True, "order": True},
]


def made_by(decorate, **how):
    """Return a class and one that inherits from it, of fields of every kind."""

    @decorate(**how)
    class Base:
        """What it is."""

        a: int
        b: tuple = ()

    @decorate(**how)
    class Fields(Base):
        """What it is."""

        c: list = dataclasses.field(default_factory=list)
        d: str = dataclasses.field(default="d", repr=False, compare=False)
        e: int = dataclasses.field(default=5, init=False)
        f: int = dataclasses.field(default=0, kw_only=True)

        def __post_init__(self):
            if self.a < 0:
                raise ValueError("a is negative")

    for each in (Base, Fields):
        each.__module__, each.__qualname__ = __name__, each.__name__
    return Base, Fields


def outcome(act):
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - of whatever kind, it is compared
        return type(error), str(error).replace("made_by.<locals>.", "")


def deeds(base, fields):
    """Return what can be done with the classes."""
    one = fields(a=1, b=(2,), c=[3], d="x", f=7)
    same, other = fields(a=1, b=(2,), c=[3], d="y", f=7), fields(a=1, b=(2,))
    bare = base(a=1)
    return {
        "places": lambda: vars_of(fields(1, (2,), [3], "x")),
        "names": lambda: vars_of(one),
        "defaults": lambda: vars_of(fields(a=1)),
        "own": lambda: fields(a=1).c is not fields(a=1).c,
        "missing": fields,
        "too many": lambda: fields(1, 2, 3, 4, 5),
        "unknown": lambda: fields(a=1, g=2),
        "not taken": lambda: fields(a=1, e=2),
        "judged": lambda: fields(a=-1),
        "repr": lambda: (repr(one), repr(bare)),
        "equal": lambda: (one == same, one == other, one == bare, one == 1, bare == base(a=1)),
        "hash": lambda: hash(bare) == hash(base(a=1)),
        "unhashable": lambda: hash(one) != 0,
        "set": lambda: setattr(bare, "a", 2),
        "delete": lambda: delattr(bare, "b"),
        "replace": lambda: vars_of(dataclasses.replace(one, a=9)),
        "dict": lambda: dataclasses.asdict(one),
        "copy": lambda: vars_of(copy.deepcopy(one)),
        "order": lambda: base(a=0) < base(a=1),
        "match": lambda: fields.__match_args__,
        "slots": lambda: [getattr(each, "__slots__", None) for each in (base, fields)],
        "signature": lambda: len(inspect.signature(one.__init__).parameters),
        "doc": lambda: fields.__doc__,
    }


def vars_of(value):
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@pytest.mark.parametrize("how", HOW, ids=str)
def test_it_does_what_one_of_the_standard_library_does(how):
    ours, theirs = [
        {name: outcome(act) for name, act in deeds(*made_by(decorate, **how)).items()}
        for decorate in (values.dataclass, dataclasses.dataclass)
    ]
    assert ours == theirs


@values.dataclass(frozen=True, slots=True)
class Kept:
    a: int
    b: str = ""


@values.dataclass(frozen=True)
class OwnWays:
    a: int

    def __repr__(self):
        return "own"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 7


def test_one_that_cannot_be_changed_can_be_pickled():
    kept = Kept(1, "x")
    assert pickle.loads(pickle.dumps(kept)) == kept == copy.copy(kept)  # noqa: S301 - its own


def test_methods_that_a_class_has_of_its_own_stay():
    assert (repr(OwnWays(1)), OwnWays(1) == OwnWays(2), hash(OwnWays(1))) == ("own", True, 7)


def test_one_that_holds_itself_can_be_told():
    @values.dataclass
    class Holder:
        held: object = None

    holder = Holder()
    holder.held = holder
    assert repr(holder).endswith("Holder(held=...)")


def test_a_worker_starts_without_compiling_the_methods_of_its_classes():
    program = """
import sys
import shardfleet.runtime.entry_points
modules = [module for name, module in sys.modules.items() if name.startswith("shardfleet.")]
classes = {c for m in modules for c in vars(m).values() if isinstance(c, type)}
inits = [vars(c)["__init__"] for c in classes if "__dataclass_fields__" in vars(c)]
print(sum(init.__code__.co_filename == "<string>" for init in inits), len(inits))
"""
    words = [sys.executable, "-c", program]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
    assert int(told[0]) <= 20, told
    assert int(told[1]) >= 100, told
