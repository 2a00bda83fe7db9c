"""
The order of checkpoints: ``ExtendedSequenceNumber.compareTo`` and ``equals`` of the KCL.

Rule: protocol.md §1.5.
"""

import re

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ProtocolError
from tests.conformance.judge import Area, Deliberate

WORDS = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP", "SHARD_END")
ODD = ("", "-1", "+1", "latest", "SHARD_END ", "007", "00", "1e3", "0x1", "\u0663", "\u0967\u0968")
SUBS_MOST = 2**63 - 1
REFUSED = "IllegalArgumentException"
OUR_DIGITS_MOST = 129


def draw(chance):
    """Draw two checkpoints, often alike."""
    one = _checkpoint(chance)
    match chance.randrange(5):
        case 0:
            return one, (one[0], _sub(chance))
        case 1 if one[0].isdecimal() and one[0].isascii():
            near = max(0, int(one[0]) + chance.choice((-1, 0, 1)))
            return one, (str(near), _sub(chance))
        case _:
            return one, _checkpoint(chance)


def _checkpoint(chance):
    kind = chance.randrange(40)
    if kind == 0:
        return chance.choice(ODD), _sub(chance)
    if kind == 1:
        return str(chance.randrange(10 ** chance.randint(128, 131))), _sub(chance)
    if kind < 14:
        return chance.choice(WORDS), _sub(chance)
    return str(chance.randrange(10 ** chance.randint(1, 57))), _sub(chance)


def _sub(chance):
    return chance.choice(
        (0, 0, 1, chance.randrange(300), chance.randrange(10), chance.randint(0, SUBS_MOST), -1)
        if not chance.randrange(20)
        else (0, 0, 1, chance.randrange(300), chance.randrange(10), chance.randint(0, SUBS_MOST))
    )


def ours(case):
    """Return what the driver returns of the KCL's."""
    try:
        one, other = (ExtendedSequenceNumber(*each) for each in case)
    except ProtocolError:
        return REFUSED
    return [(one > other) - (one < other), one == other]


def differences(case, our, their):
    """Yield the one difference there can be."""
    if our != their:
        yield case, our, their


def _is_number_of_no_stream(difference):
    case, our, their = difference
    return (
        our == REFUSED
        and their != REFUSED
        and any(
            number.isdecimal()
            and (
                not re.fullmatch("0|[1-9][0-9]*", number, re.ASCII) or len(number) > OUR_DIGITS_MOST
            )
            for number, _ in case
        )
    )


def _is_below_zero(difference):
    case, our, their = difference
    return our == REFUSED and their != REFUSED and any(sub < 0 for _, sub in case)


def _are_two_ends(difference):
    case, our, their = difference
    return (
        [number for number, _ in case] == ["SHARD_END", "SHARD_END"]
        and their == [0, False]
        and our == [(case[0][1] > case[1][1]) - (case[0][1] < case[1][1]), False]
    )


AREA = Area(
    "checkpoints",
    draw,
    ours,
    differences,
    (
        Deliberate(
            "no stream has such a number: refused",
            "domain/stream/sequence.py: digits without leading zeros, 129 at most",
            _is_number_of_no_stream,
        ),
        Deliberate(
            "no sub-sequence number is below zero: refused",
            "domain/stream/sequence.py: index 0...n-1",
            _is_below_zero,
        ),
        Deliberate(
            "two ends of different sub-sequence numbers are ordered by them",
            "protocol.md §1.5, ties; the KCL calls them neither less nor equal",
            _are_two_ends,
        ),
    ),
)
