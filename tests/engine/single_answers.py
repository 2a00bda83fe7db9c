"""
Every kind of answer that may come once, as an adapter raises it, and a port that gives it once.

The kinds are those of :mod:`shardfleet.domain.refusals`, one answer for each error that a port may
raise for a refusal: what the adapters make of each code and status is tested in
``tests/adapters/test_every_answer.py``.
"""

from dataclasses import dataclass

from shardfleet.domain.refusals import RefusalKind, error_of, refusal_of

# One (code, status) for each: HTTP's where there is no code.
ANSWERS = {
    RefusalKind.BUSY: ("ThrottlingException", 400),
    RefusalKind.BROKEN: ("InternalServerError", 500),
    RefusalKind.UNTRUSTED: ("InvalidSignatureException", 400),
    RefusalKind.DENIED: ("AccessDeniedException", 400),
    RefusalKind.KEY_DENIED: ("KMSAccessDeniedException", 400),
    RefusalKind.ODD: ("StrangeException", 400),
    RefusalKind.STRANGE: ("403", 403),
}
LANDED = "BROKEN, and carried out"
KINDS = (*ANSWERS, LANDED)
WRITES = {
    "apply",
    "delete",
    "increment",
    "keep",
    "put_records",
    "record",
    "start",
    "write",
}


def answer(kind, call, *, writes):
    """Return what an adapter raises."""
    code, status = ANSWERS[RefusalKind.BROKEN if kind == LANDED else kind]
    return error_of(refusal_of(code, status), f"{call}: {code}: no", writes=writes)


@dataclass
class Fault:
    """Gives one call one answer: the first with this name, or all of them while it is asked to."""

    call: str = ""
    kind: object = None
    lasts: bool = False
    from_ms: int = 0

    def __post_init__(self):
        self.seen = {}
        self.given = 0

    def is_due(self, name, about, now_ms):
        if now_ms < self.from_ms:
            return False
        self.seen[name] = self.seen.get(name, 0) + 1
        is_meant = self.call in (name, f"{name} {about}")
        return is_meant and (self.lasts or not self.given)

    def port(self, port, name, clock):
        return Answering(port, name, self, clock)


class Answering:
    """A port that is given answers by a fault; a call's name has what it is about."""

    def __init__(self, port, name, fault, clock):
        self.__dict__.update(_port=port, _name=name, _fault=fault, _clock=clock)

    def __getattr__(self, name):
        member = getattr(self._port, name)
        if not callable(member):
            return member

        async def call(*arguments, **named):
            about = ""
            if arguments and self._name == "state":
                about = f" {arguments[0]}"
            elif name == "apply":
                about = f" {arguments[0].operation}"
            what, fault = f"{self._name}.{name}{about}", self._fault
            subject = arguments[0] if arguments else ""
            if not fault.is_due(what, subject, self._clock.monotonic_ms()):
                return await member(*arguments, **named)
            fault.given += 1
            writes = name in WRITES
            if fault.kind == LANDED and writes:
                await member(*arguments, **named)
            raise answer(fault.kind, what, writes=writes)

        return call
