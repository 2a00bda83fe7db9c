"""
ARNs as far as they are known before a deploy: of which kind, in which region, of which account.

The construct refuses by it, and so does the judge of templates. What is a reference, in angle
brackets as :func:`shardfleet_ops.template.reading.spelled` writes it, may be anything.
"""

from __future__ import annotations

import re

from msgspec import Struct

# botocore's partitions.json: how regions begin, by partition; all others are of "aws".
PARTITIONS = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "us-iso-": "aws-iso",
    "us-isob-": "aws-iso-b",
    "eu-isoe-": "aws-iso-e",
    "us-isof-": "aws-iso-f",
    "eu-isof-": "aws-iso-f",
    "eusc-": "aws-eusc",
}
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]+){1,2}-[0-9]{1,2}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_REFERENCE = re.compile(r"<[^<>]*>")
_ANY = "*"  # What a reference is replaced by: may be anything.
_PARTS = 6  # arn:partition:service:region:account:resource


class ArnKind(Struct, frozen=True, kw_only=True):
    """
    A kind of thing that has an ARN.

    Attributes:
        what: for a person, with its article.
        service: as ARNs name it.
        resource: pattern of what follows the account.
        shown: the same for a person.
        regional: whether its ARN has a region.
        owned: whether its ARN has an account.

    """

    what: str
    service: str
    resource: str
    shown: str
    regional: bool = True
    owned: bool = True

    @property
    def form(self) -> str:
        """Return how such an ARN looks, for a person."""
        where = ("<region>" if self.regional else "", "<account>" if self.owned else "")
        return f"arn:<partition>:{self.service}:{where[0]}:{where[1]}:{self.shown}"


ALARM = ArnKind(what="an alarm", service="cloudwatch", resource="alarm:.+", shown="alarm:<name>")
BUCKET = ArnKind(
    what="a bucket",
    service="s3",
    resource=r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    shown="<bucket>",
    regional=False,
    owned=False,
)
CONSUMER = ArnKind(
    what="a registered consumer of the stream",
    service="kinesis",
    resource=r"stream/[\w.-]{1,128}/consumer/[\w.-]{1,128}:[0-9]{1,19}",
    shown="stream/<name>/consumer/<name>:<time>",
)
FUNCTION = ArnKind(
    what="a Lambda function, or of its version or alias",
    service="lambda",
    resource=r"function:[\w-]{1,64}(:([\w-]{1,128}|\$LATEST))?",
    shown="function:<name>",
)
# The key of AWS itself needs no right, so its alias does no harm.
KEY = ArnKind(
    what="a KMS key (no alias: a right on an alias gives nothing)",
    service="kms",
    resource=r"key/[A-Za-z0-9-]+|alias/aws/\w+",
    shown="key/<id>",
)
LAYER = ArnKind(
    what="a version of a Lambda layer",
    service="lambda",
    resource=r"layer:[\w-]{1,140}:[0-9]+",
    shown="layer:<name>:<version>",
)
MACHINE = ArnKind(
    what="a state machine",
    service="states",
    resource=r"stateMachine:[^:/]+(:[^:/]+)?",
    shown="stateMachine:<name>",
)
POLICY = ArnKind(
    what="a managed policy",
    service="iam",
    resource="policy/.+",
    shown="policy/<name>",
    regional=False,
)
QUEUE = ArnKind(
    what="a queue of SQS (no FIFO queue)",
    service="sqs",
    resource=r"[\w-]{1,80}",
    shown="<queue>",
)
ROLE = ArnKind(
    what="a role", service="iam", resource="role/.+", shown="role/<name>", regional=False
)
STREAM = ArnKind(
    what="a Kinesis stream",
    service="kinesis",
    resource=r"stream/[\w.-]{1,128}",
    shown="stream/<name>",
)
TABLE = ArnKind(
    what="a table of DynamoDB",
    service="dynamodb",
    resource=r"table/[\w.-]{3,255}",
    shown="table/<name>",
)
TOPIC = ArnKind(
    what="a topic of SNS (no FIFO topic)",
    service="sns",
    resource=r"[\w-]{1,256}",
    shown="<topic>",
)


def region_fault(region: str) -> str:
    """Return why a text is no region of AWS; nothing where it is one, or is not known."""
    if _ANY in _unknown(region) or _REGION.fullmatch(region):
        return ""
    return f"{region!r} found, a region such as eu-central-1 allowed"


def partition_of(region: str) -> str:
    """Return the partition of AWS that a region is in."""
    return next((name for start, name in PARTITIONS.items() if region.startswith(start)), "aws")


def region_in(arn: str) -> str:
    """Return the region that an ARN names, empty where it names none that is known."""
    parts = _unknown(arn).split(":")
    found = parts[3] if len(parts) >= _PARTS else ""
    return found if _REGION.fullmatch(found) else ""


def arn_fault(arn: str, kind: ArnKind, *, region: str = "", account: str = "") -> str:
    """
    Return why AWS would refuse an ARN, or never match it; nothing where it may be right.

    Args:
        arn: the ARN, references in angle brackets.
        kind: what it must be the ARN of.
        region: the only one that is allowed, empty where any is, or where that is not known.
        account: likewise.

    """
    if any(mark in arn for mark in "{}"):  # Of a function of CloudFormation, or a parameter's.
        return ""
    text = _unknown(arn)
    if text == _ANY:
        return ""
    place = f" in {region}" if region and kind.regional else ""
    owner = f" of account {account}" if account and kind.owned else ""
    allowed = f"{kind.form}, the ARN of {kind.what}{place}{owner}"
    faults = _part_faults(text, kind, region=region, account=account)
    return f"{arn!r} found ({faults[0]}), {allowed} allowed" if faults else ""


def consumer_fault(consumer: str, stream: str) -> str:
    """Return why a consumer cannot be one of a stream; nothing where it may be, by their ARNs."""
    if any(mark in consumer + stream for mark in "{}<>") or consumer.startswith(f"{stream}/"):
        return ""
    return f"{consumer!r} found, a consumer of {stream} allowed"


def _part_faults(text: str, kind: ArnKind, *, region: str, account: str) -> list[str]:
    parts = text.split(":", _PARTS - 1)
    if len(parts) < _PARTS or parts[0] != "arn":
        # Joined with a reference to a whole ARN it may become one.
        return [] if text.startswith(_ANY) else ["no ARN"]
    _, partition, service, where, owner, resource = parts
    faults = []
    if not _may_be(service, re.escape(kind.service)):
        faults.append(f"of {service}")
    if not _may_be(where, _REGION.pattern if kind.regional else ""):
        faults.append(f"region {where!r}")
    elif region and kind.regional and not _may_be(where, re.escape(region)):
        faults.append(f"in {where}")
    if not _may_be(owner, f"{_ACCOUNT.pattern}|aws" if kind.owned else ""):
        faults.append(f"account {owner!r}")
    elif account and kind.owned and not _may_be(owner, f"{re.escape(account)}|aws"):
        faults.append(f"of account {owner}")
    known = where if _REGION.fullmatch(where) else region
    allowed = partition_of(known) if known else "|".join(["aws", *PARTITIONS.values()])
    if not _may_be(partition, allowed):
        faults.append(f"partition {partition!r}")
    if not _may_be(resource, kind.resource):
        faults.append(f"names {resource!r}")
    return faults


def _unknown(text: str) -> str:
    return _REFERENCE.sub(_ANY, text)


def _may_be(part: str, pattern: str) -> bool:
    """Return whether a part fits; of one with a reference in it, what comes before that."""
    if _ANY not in part:
        return re.fullmatch(pattern, part) is not None
    begun = part.partition(_ANY)[0]
    fixed = re.match(r"[A-Za-z]+[:/]", pattern)
    return not (fixed and begun) or begun.startswith(fixed[0]) or fixed[0].startswith(begun)
