"""
Which leases are made of a listing and the leases there are: ``HierarchicalShardSyncer`` of the KCL.

Rules: protocol.md §4.2, §4.4.
"""

from functools import cached_property

from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.reasons import ListedMidReshard, ListingUntiled
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from tests.conformance.judge import Area, Deliberate
from tests.conformance.tables import (
    INITIAL,
    draw_leases,
    draw_stream,
    leases_of,
    shards_of,
    told,
)

REFUSED = "KinesisClientLibIOException"
REFUSALS = (REFUSED, "IllegalStateException")  # The second one: of no shard at all.


def draw(chance):
    """Draw a stream, a position, and the leases of a reader, or none."""
    stream = draw_stream(chance)
    initial = chance.choice(INITIAL)
    leases = draw_leases(chance, stream, initial) if chance.randrange(6) else []
    listing = stream.listing()
    if not leases and chance.randrange(4):
        listing = stream.open_at(chance.randint(10, stream.now))
    match chance.randrange(20):
        case 0 if len(listing) > 1:
            listing.pop(chance.randrange(len(listing)))
        case 1:
            listing = _mid_reshard(chance, stream)
    chance.shuffle(listing)
    return {"shards": told(listing), "leases": leases, "initial": initial}


def _mid_reshard(chance, stream):
    before = {key for key, shard in stream.shards.items() if shard.is_open}
    chance.choice((stream.split, stream.merge))(chance.randrange(9))
    listing = stream.listing()
    at = [i for i, s in enumerate(listing) if s.shard_id in before and not s.is_open]
    for place in at:
        listing[place] = _reopened(listing[place])
    return listing


def _reopened(shard):
    return type(shard)(
        shard_id=shard.shard_id,
        hash_key_range=shard.hash_key_range,
        starting_sequence_number=shard.starting_sequence_number,
        parent_shard_id=shard.parent_shard_id,
        adjacent_parent_shard_id=shard.adjacent_parent_shard_id,
    )


def ours(case):
    """Return what the driver returns of the KCL's; suspects have been so for long enough."""
    shards, leases = shards_of(case), leases_of(case)
    plan = plan_lease_sync(
        shards,
        leases,
        initial=ExtendedSequenceNumber(case["initial"]),
        listed_at_initial=None if leases else shards,
        lost=[shard.shard_id for shard in shards],
    )
    if any(isinstance(each, (ListedMidReshard, ListingUntiled)) for each in plan.problems):
        return REFUSED
    return [
        [
            wanted.lease.lease_key,
            wanted.lease.checkpoint.sequence_number,
            wanted.lease.checkpoint.sub_sequence_number,
            sorted(wanted.lease.parent_shard_ids),
        ]
        for wanted in plan.create
    ]


class Difference:
    """
    One shard for which a lease is made by one side alone, or elsewhere; or the answers as such.

    Attributes:
        key: the shard; None: one side refuses, or the order differs.
        ours, theirs: checkpoint of the lease that is made, None if none is.
        made: by us, by them: the shards for which a lease is made.

    """

    def __init__(self, case, key, our, their):
        self.case, self.key, self.initial = case, key, case["initial"]
        self.made = {lease[0] for lease in our}, {lease[0] for lease in their}
        found = [{lease[0]: lease[1] for lease in made} for made in (our, their)]
        self.ours, self.theirs = (each.get(key) for each in found)
        self.checkpoints = {lease[0]: lease[1] for lease in case["leases"]}

    def __str__(self):
        """Say how each side sees it."""
        return f"shard {self.key}: ours {self.ours}, theirs {self.theirs}"

    @cached_property
    def listed(self):
        """Return the listed shards' parents."""
        return {each[0]: {p for p in each[1:3] if p} for each in self.case["shards"]}

    @property
    def closed(self):
        """Return the listed shards that have an end."""
        return {each[0] for each in self.case["shards"] if each[4] is not None}

    @cached_property
    def parents(self):
        """Return each shard's parents, by the listing and by what leases say."""
        found = {key: set(parents) for key, parents in self.listed.items()}
        for key, _, parents, children, _ in self.case["leases"]:
            found.setdefault(key, set()).update(parents)
            for child in children:
                found.setdefault(child, set()).add(key)
        return found

    def before(self, key):
        """Return all that a shard descends from."""
        found, waiting = set(), [key]
        while waiting:
            new = self.parents.get(waiting.pop(), set()) - found
            found |= new
            waiting.extend(new)
        return found

    @cached_property
    def ancestors(self):
        """Return all that this shard descends from."""
        return self.before(self.key)

    @property
    def is_made_again(self):
        """Tell whether we make a lease, where one that was lost begins."""
        repair = "TRIM_HORIZON" if self.initial == "LATEST" else self.initial
        return self.ours == repair and self.theirs in (None, self.initial)

    @property
    def follows_finished(self):
        """Tell whether a parent was read to its end."""
        return any(self.checkpoints.get(p) == "SHARD_END" for p in self.parents[self.key])

    @property
    def is_beside_read(self):
        """Tell whether another child of a parent is beyond where all begin."""
        mine = self.parents[self.key]
        return any(
            mine & self.parents[key] and checkpoint != self.initial
            for key, checkpoint in self.checkpoints.items()
        )

    @property
    def was_read(self):
        """Tell whether anything was."""
        return any(c == "SHARD_END" or c.isdigit() for c in self.checkpoints.values())


def differences(case, our, their):
    """Yield each shard whose lease differs, and the order if it alone does."""
    our, their = (REFUSED if each in REFUSALS else each for each in (our, their))
    if our == their:
        return
    if REFUSED in (our, their):
        yield Difference(case, None, (), ())
        return
    one, other = ({lease[0]: lease[1:] for lease in each} for each in (our, their))
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            yield Difference(case, key, our, their)
    both = one.keys() & other.keys()
    if [x[0] for x in our if x[0] in both] != [x[0] for x in their if x[0] in both]:
        yield Difference(case, None, our, their)


def _is_child_of_finished(found):
    return found.is_made_again and found.follows_finished


def _is_beside_read(found):
    return found.is_made_again and not found.follows_finished and found.is_beside_read


def _is_lost_unseen(found):
    return (
        found.is_made_again
        and found.initial == "LATEST"
        and found.was_read
        and not found.follows_finished
        and not found.is_beside_read
    )


def _is_nearer_than_oldest(found):
    if found.initial == "LATEST" or found.ours != found.initial or found.theirs is not None:
        return False
    instead = found.made[1] & found.ancestors - found.made[0]
    ended = any(found.checkpoints.get(key) == "SHARD_END" for key in found.ancestors)
    return bool(instead) or ended


def _is_other_parent(found):
    return found.initial == "LATEST" and found.ours == "LATEST" and found.theirs is None


def _is_awaited_at_merge(found):
    if (found.ours, found.theirs) != ("SHARD_END", None) or found.key in found.checkpoints:
        return False
    waiting = {
        parent
        for child, parents in found.listed.items()
        if found.key in parents and found.checkpoints.get(child) in (None, *INITIAL)
        for parent in parents - {found.key}
    }
    return any(found.checkpoints.get(key, "SHARD_END") != "SHARD_END" for key in waiting)


def _is_of_no_open_shard(found):
    if found.key is None or found.ours is None or found.theirs is not None:
        return False
    later = {found.key}
    for _ in found.listed:
        later |= {key for key, parents in found.listed.items() if later & parents}
    return later <= found.closed


def _is_not_wanted_yet(found):
    return (
        found.initial == "LATEST"
        and not found.was_read
        and found.key in found.closed
        and (found.ours, found.theirs) == (None, "LATEST")
    )


def _is_done_with(found):
    later = (key for key in found.checkpoints if found.key in found.before(key))
    return found.ours is None and found.theirs == found.initial and any(later)


def _waits_for_unlisted(found):
    unlisted = found.ancestors - found.listed.keys()
    return (
        found.ours is None
        and found.theirs == found.initial
        and any(found.checkpoints.get(key, "SHARD_END") != "SHARD_END" for key in unlisted)
    )


def _waits_for_made(found):
    return (
        found.ours is None
        and found.theirs == found.initial
        and bool(found.made[0] & found.ancestors - found.made[1])
    )


AREA = Area(
    "shard_sync",
    draw,
    ours,
    differences,
    (
        Deliberate(
            "the child of a shard that was read to its end is made",
            "protocol.md S8; the KCL takes it for a descendant of a leased shard",
            _is_child_of_finished,
        ),
        Deliberate(
            "the other half of a parent has begun: the lease was lost, and its backlog is read",
            "protocol.md S7",
            _is_beside_read,
        ),
        Deliberate(
            "LATEST, and something was read: a line without a lease was lost, not never made",
            "protocol.md S10",
            _is_lost_unseen,
        ),
        Deliberate(
            "the nearest is made; the KCL makes the oldest listed, or none behind a lease",
            "protocol.md S3",
            _is_nearer_than_oldest,
        ),
        Deliberate(
            "LATEST, nothing read: the other parent of a merge whose first is covered",
            "protocol.md S5, S6",
            _is_other_parent,
        ),
        Deliberate(
            "a parent of a merge of which nothing can be read: Java's worker waits for its lease",
            "protocol.md S12; ShutdownTask.createLeasesForChildShardsIfNotExist",
            _is_awaited_at_merge,
        ),
        Deliberate(
            "a shard is made from which no listed open one descends; the KCL goes by the open ones",
            "protocol.md S3",
            _is_of_no_open_shard,
        ),
        Deliberate(
            "LATEST, nothing read: what is closed is not wanted until a child of it is covered",
            "protocol.md S4, S5",
            _is_not_wanted_yet,
        ),
        Deliberate(
            "what lies before a lease is done with",
            "protocol.md S11",
            _is_done_with,
        ),
        Deliberate(
            "it waits for a lease whose shard is no longer listed",
            "protocol.md S6; the KCL walks up listed parents only",
            _waits_for_unlisted,
        ),
        Deliberate(
            "it waits for what is made now, one generation at a time",
            "protocol.md S3",
            _waits_for_made,
        ),
    ),
)
