"""
What workers of the KCL do to leases, as data: by fields, without ids, checkpoints and machine.

A history is recorded from the real KCL and kept with the tests; that of the simulated peer is told
in the same words and held against it (``tests/simulation/test_java_peer.py``).
"""

import json
from collections import Counter
from statistics import median

_AS_ONE = {"checkpointSubSequenceNumber": "checkpoint"}
_COUNTED = {"leaseCounter", "ownerSwitchesSinceCheckpoint"}
# Moves neither who has a lease nor how far it is; the KCL 3 writes a rate with it.
_RENEWAL = {"leaseCounter +1", "throughputKBps set"}


def kind_of(before, after):
    """
    Say by fields what a write did to an item; ``()`` if nothing.

    Args:
        before: the item, as DynamoDB has it; None: there was none.
        after: likewise; None: it is gone.

    """
    if after is None:
        return ("item gone",)
    if before is None:
        return ("item new", *(f"{name} set" for name in sorted(after) if name != "leaseKey"))
    names = sorted(name for name in before.keys() | after.keys()
                   if _plain(before.get(name)) != _plain(after.get(name)))  # fmt: skip
    words = [f"{_AS_ONE.get(name, name)} {_word(name, before, after)}" for name in names]
    return tuple(dict.fromkeys(words))


def _plain(value):
    """Return a value without the order of a set."""
    return sorted(value["SS"]) if value and "SS" in value else value


def _word(name, before, after):
    if name not in after:
        return "gone"
    if name not in _COUNTED or name not in before:
        return "set"
    moved = int(after[name]["N"]) - int(before[name]["N"])
    return f"+{moved}" if moved > 0 else f"to {after[name]['N']}"


def owners_of(item):
    """Return ``leaseOwner`` and ``checkpointOwner``, None for each that is absent."""
    return tuple((item or {}).get(name, {}).get("S") for name in ("leaseOwner", "checkpointOwner"))


class LeaseHistory:
    """
    Writes to a lease table, and of rows of worker metrics, told as they come.

    Leases without parents are made by whoever sets the table up, and so are left out.

    Args:
        strangers: owners that are no workers of the KCL: what they do is left out as well.

    Attributes:
        kinds: what a write did to how often it was done.
        moves: milliseconds since the first write, lease, its owners before and after, whether it
            is finished, and how old the row of its new owner was; None: it had none.

    """

    def __init__(self, strangers=()):
        self.kinds = Counter()
        self.moves = []
        self._strangers = set(strangers)
        self._leases = {}
        self._began_ms = None
        self._row_ms = {}
        self._row_gaps_ms = []
        # lease -> when its owner renewed it last
        self._renewed_ms = {}
        self._gaps_ms = []

    def row(self, at_ms, worker):
        """Tell of a row of a worker's metrics that was written."""
        if worker in self._row_ms:
            self._row_gaps_ms.append(at_ms - self._row_ms[worker])
        self._row_ms[worker] = at_ms

    def write(self, at_ms, key, *, before, after):
        """Tell of a lease that was written."""
        kind, owners, then = kind_of(before, after), owners_of(after), owners_of(before)
        effective = owners[1] or owners[0]
        self._began_ms = at_ms if self._began_ms is None else self._began_ms
        is_ours = before is None and "parentShardId" not in after
        if not kind or is_ours or effective in self._strangers:
            return
        self.kinds[kind] += 1
        number = self._leases.setdefault(key, len(self._leases))
        if owners != then:
            row_ms = self._row_ms.get(owners[0])
            age_ms = None if row_ms is None else at_ms - row_ms
            is_finished = (after or before)["checkpoint"]["S"] == "SHARD_END"
            since_ms = at_ms - self._began_ms
            self.moves.append([since_ms, number, [*then], [*owners], is_finished, age_ms])
            self._renewed_ms.pop(key, None)
        elif set(kind) <= _RENEWAL:
            if key in self._renewed_ms:
                self._gaps_ms.append(at_ms - self._renewed_ms[key])
            self._renewed_ms[key] = at_ms

    def body(self):
        """Return it as JSON values."""
        return {
            "kinds": [[*kind] for kind in sorted(self.kinds)],
            "between_renewals_ms": _spread(self._gaps_ms),
            "between_rows_ms": _spread(self._row_gaps_ms),
            "moves": self.moves,
        }


def _spread(numbers):
    """Return the least, the middle and the greatest."""
    return [min(numbers), round(median(numbers)), max(numbers)] if numbers else []


def text_of(body):
    """Return a history as it is kept: a line for each kind and each move."""
    lines = []
    for name, value in body.items():
        told = json.dumps(value)
        if name in ("kinds", "moves"):
            rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
            told = f"[\n{rows}\n  ]"
        lines.append(f"  {json.dumps(name)}: {told}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
