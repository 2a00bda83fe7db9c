"""
What goes wrong, how often, and how severely: drawn once per seed, then per call.

Each seed has a mix of its own, in which many kinds of faults are rare or absent: a run with
everything at once hides what needs one kind of fault undisturbed (swarm testing, Groce et al.
2012).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields

from shardfleet.errors import ConfigurationError

# Of a kind that a seed has at all, the probability is drawn between these parts of the greatest.
_LEAST_PART, _MOST_PART = 0.1, 1.0
_KINDS_PER_SEED = 0.6
# A plane of this order has its square of points, and on each of its lines as many as its order;
# any two points are on one line together. It has a point for every kind that seeds draw.
_ORDER = 7
_FOCUS = 2.0


@dataclass(slots=True, kw_only=True)
class FaultMix:
    """
    The probability of each kind of fault; the defaults are the greatest ones.

    Attributes of tables and streams are per call; ``connection_lost``, ``duplicate_call`` and
    ``late_start`` per invocation or start, the first of a process each 15 s: it reaches no table
    for a while; ``kill_between`` and ``freeze`` per actor and second;
    handler faults per batch,
    ``poison`` per put: a record that kills whoever handles it; ``cold_start`` and ``slow_import``
    per invocation; ``foreign_checkpoint`` and ``rewind`` per lease and second; those of the sink
    per call of it. ``late_twin`` is per invocation: it is made again up to a minute later;
    ``stillborn`` per execution: it closes before its first invocation; ``lease_vanishes`` per lease
    and second: somebody deletes the row beside a sibling's; ``lease_deleted`` likewise, whatever is
    being read. ``consumer_raises`` is per page that a worker reads and per handler call: the port
    raises an error of no kind that the engine knows. ``duplicated_write``: the request lands a
    second time, a moment later; ``false_no_stream``: the whole stream is not found, for once;
    ``malformed_lease`` is per lease and second: a stranger makes a row unreadable for a while;
    ``clock_jumps`` is per invocation and second, ``clocks_jump``, of all at once, per second: wall
    clocks are an hour ahead or behind from then on, or right again;
    ``import_kills`` is per invocation, ``call_kills`` per handler call without records: a hook, a
    window's last call, a flush of manual checkpoints; the same call of that shard kills from then
    on, for minutes; ``odd_answer`` is per call: a refusal by any code or status there is;
    ``malformed_document`` per second: one document cannot be read, or says more than is known;
    ``position_import`` per second: somebody pauses the fleet and imports positions;
    ``command`` likewise: an operator pauses, drains, releases or migrates something;
    ``decode_bomb`` per put: many aggregates at once, each of which takes long to take apart.
    """

    # --- DynamoDB and Step Functions
    throttle: float = 0.05
    request_lost: float = 0.02
    reply_lost: float = 0.03
    late_write: float = 0.01
    slow_call: float = 0.02
    stale_read: float = 0.3
    table_outage: float = 0.001
    # --- Kinesis
    stream_throttle: float = 0.05
    iterator_expired: float = 0.01
    false_end: float = 0.01
    empty_with_lag: float = 0.05
    short_page: float = 0.2
    late_visibility: float = 0.2
    stale_listing: float = 0.2
    # --- Lambda and the state machine
    kill_in_call: float = 0.004
    kill_between: float = 0.03
    freeze: float = 0.02
    connection_lost: float = 0.1
    duplicate_call: float = 0.05
    late_start: float = 0.3
    execution_dies: float = 0.06
    clock_drift: float = 1.0
    manager_missing: float = 0.15
    manager_twice: float = 0.2
    # --- the user's handler
    handler_raises: float = 0.05
    handler_partial: float = 0.05
    handler_slow: float = 0.1
    handler_hangs: float = 0.004
    poison: float = 0.006
    # --- more of Lambda
    freeze_in_call: float = 0.002
    cold_start: float = 0.2
    slow_import: float = 0.1
    # --- other hands on the lease table
    foreign_checkpoint: float = 0.002
    rewind: float = 0.002

    # --- the sink of a user's handler
    sink_refuses: float = 0.01
    sink_no_answer: float = 0.01
    kill_at_sink: float = 0.003
    freeze_at_sink: float = 0.003

    # --- what only arenas of mutants have
    late_twin: float = 0.0
    stillborn: float = 0.0
    lease_vanishes: float = 0.0
    lease_deleted: float = 0.0

    # --- what nobody foresaw, in one shard's consumer
    consumer_raises: float = 0.01

    # --- more of Kinesis: a shard is not found for once, listings show part of a stream
    false_gone: float = 0.03
    torn_listing: float = 0.05

    # --- what networks and strangers do besides
    duplicated_write: float = 0.01
    false_no_stream: float = 0.04
    malformed_lease: float = 0.001

    # --- what takes a worker's processor
    decode_bomb: float = 0.004

    # --- wall clocks
    clock_jumps: float = 0.006
    clocks_jump: float = 0.01

    # --- user code that kills its process without having a record
    import_kills: float = 0.03
    call_kills: float = 0.02

    # --- answers of every kind that the table of refusals knows, one at a time
    odd_answer: float = 0.01

    # --- documents of the fleet state that a worker's role has written nonsense into
    malformed_document: float = 0.004

    # --- positions of another reader, which goes on where the fleet stands, and hands over to it
    position_import: float = 0.004

    # --- an operator's commands: pause, drain, release, migrate, and a resume after each
    command: float = 0.006

    @classmethod
    def drawn(cls, chance: random.Random, *, often: AbstractSet[str] = frozenset()) -> FaultMix:
        """Draw a mix: most kinds somewhat, some not at all, and some often."""
        mix = cls()
        for kind in fields(cls):
            part = chance.uniform(_LEAST_PART, _MOST_PART)
            present = chance.random() < _KINDS_PER_SEED
            if kind.name in often:
                part, present = _FOCUS, True
            most = getattr(mix, kind.name)
            setattr(mix, kind.name, min(1.0, most * part) if present else 0.0)
        return mix

    @classmethod
    def none(cls) -> FaultMix:
        """Return the mix of a perfect world."""
        return cls(**{kind.name: 0.0 for kind in fields(cls)})


# Kinds that fleets of drawn seeds have: no sink is there without a user's handler, and what only
# arenas have is rare enough in the world.
DRAWN = tuple(kind.name for kind in fields(FaultMix) if kind.default and "sink" not in kind.name)


def often_in(seed: int) -> frozenset[str]:
    """
    Return the kinds that are frequent in a seed: those on its line of the affine plane.

    Lines are taken in turn, so that of ``_ORDER * (_ORDER + 1)`` seeds one after the other, one
    has any two kinds often: a covering array of strength two.
    """
    slope, start = divmod(seed % (_ORDER * (_ORDER + 1)), _ORDER)
    if slope == _ORDER:
        line = [start * _ORDER + y for y in range(_ORDER)]
    else:
        line = [x * _ORDER + (slope * x + start) % _ORDER for x in range(_ORDER)]
    return frozenset(DRAWN[point] for point in line if point < len(DRAWN))


def all_but(kinds: frozenset[str]) -> list[str]:
    """Return the other kinds of faults, in order."""
    return [kind.name for kind in fields(FaultMix) if kind.name not in kinds]


def rates_checked(text: str) -> dict[str, float]:
    """
    Read kinds of faults and their probabilities, ``KIND=0.1``, separated by commas.

    Raises:
        ConfigurationError: there is no such kind, or no such probability.

    """
    rates: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        kind, _, rate = part.partition("=")
        names_checked(kind)
        try:
            rates[kind] = float(rate)
        except ValueError:
            rates[kind] = -1.0
        if not 0.0 <= rates[kind] <= 1.0:
            raise ConfigurationError(f"--rates {part}: {rate!r} found, 0 to 1 allowed")
    return rates


def names_checked(text: str) -> frozenset[str]:
    """
    Read kinds of faults, separated by commas.

    Raises:
        ConfigurationError: there is no such kind.

    """
    named = frozenset(filter(None, text.split(",")))
    known = all_but(frozenset())
    unknown = sorted(named - set(known))
    if unknown:
        raise ConfigurationError(
            f"kinds of faults: {', '.join(unknown)} found, of {', '.join(known)} allowed"
        )
    return named


def muted_but(only: str | None) -> frozenset[str]:
    """
    Return the kinds of faults that a list of wanted ones leaves out; None wants all.

    Raises:
        ConfigurationError: there is no such kind.

    """
    if only is None:
        return frozenset()
    return frozenset(all_but(names_checked(only)))


class Faults:
    """
    Decides, call by call, what goes wrong; counts what did.

    Attributes:
        mix: the probabilities, which do not change.
        counts: how often each kind happened.
        are_on: nothing goes wrong while this is False.
        muted: kinds that do not happen: how a failing run is made simpler.
        struck: called with the kind of each fault that happens, and whom it strikes.

    """

    def __init__(self, seed: int, mix: FaultMix, *, muted: frozenset[str] = frozenset()) -> None:
        """Seed the decisions; each kind draws from a sequence of its own."""
        self.mix = mix
        self.counts: Counter[str] = Counter()
        self.are_on = True
        self.muted = muted
        self.struck: Callable[[str, str], None] = lambda _kind, _about: None
        self._chances = {
            kind.name: random.Random(f"{seed}/{kind.name}") for kind in fields(FaultMix)
        }
        self._dice = {
            kind: (0.0 if kind in muted else getattr(mix, kind), chance.random)
            for kind, chance in self._chances.items()
        }

    def strike(self, kind: str, about: str = "") -> bool:
        """
        Decide whether a fault happens now.

        Args:
            kind: a field of :class:`FaultMix`.
            about: whom it strikes, apart from the invocation that asks: its words name them.

        """
        probability, roll = self._dice[kind]
        if not probability or not self.are_on or roll() >= probability:
            return False
        self.counts[kind] += 1
        self.struck(kind, about)
        return True

    def between(self, kind: str, low: float, high: float) -> float:
        """Return how severe a fault is, evenly distributed."""
        return self._chances[kind].uniform(low, high)

    def whole(self, kind: str, low: int, high: int) -> int:
        """Return how severe a fault is, a whole number, both ends included."""
        return self._chances[kind].randint(low, high)
