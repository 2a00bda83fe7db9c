"""
What an option refers to by an ARN, a key, a region or an instant is right before it leaves synth.

The table has every such option of every construct; each is given everything that is wrong with one
of its kind, and what is right or not known yet.
"""


import pytest

from shardfleet_ops.template import arns

HOME, AWAY, ACCOUNT, OTHER = "eu-central-1", "us-east-1", "111122223333", "999999999999"
KINDS = {name: each for name, each in vars(arns).items() if isinstance(each, arns.ArnKind)}
RIGHT = {
    "ALARM": f"arn:aws:cloudwatch:{HOME}:{ACCOUNT}:alarm:deploying",
    "BUCKET": "arn:aws:s3:::given-up",
    "FUNCTION": f"arn:aws:lambda:{HOME}:{ACCOUNT}:function:mine:live",
    "KEY": f"arn:aws:kms:{HOME}:{ACCOUNT}:key/0a1b2c3d-0000-4000-8000-000000000000",
    "LAYER": f"arn:aws:lambda:{HOME}:{ACCOUNT}:layer:mine:7",
    "MACHINE": f"arn:aws:states:{HOME}:{ACCOUNT}:stateMachine:mine",
    "POLICY": f"arn:aws:iam::{ACCOUNT}:policy/boundary",
    "QUEUE": f"arn:aws:sqs:{HOME}:{ACCOUNT}:given-up",
    "ROLE": f"arn:aws:iam::{ACCOUNT}:role/mine",
    "STREAM": f"arn:aws:kinesis:{HOME}:{ACCOUNT}:stream/orders",
    "TABLE": f"arn:aws:dynamodb:{HOME}:{ACCOUNT}:table/orders",
    "TOPIC": f"arn:aws:sns:{HOME}:{ACCOUNT}:told",
}
# Of the right service, and another thing of it.
ANOTHER = {
    "ALARM": "dashboard/deploying",
    "BUCKET": "given-up/object",
    "FUNCTION": "layer:mine:7",
    "KEY": "alias/mine",
    "LAYER": "layer:mine",
    "MACHINE": "activity:mine",
    "POLICY": "role/boundary",
    "QUEUE": "given-up.fifo",
    "ROLE": "user/mine",
    "STREAM": "stream/orders/consumer/mine:1",
    "TABLE": "table/orders/index/by",
    "TOPIC": "told.fifo",
}


def wrong_forms(name):
    """Yield (what is wrong, the ARN) of a kind, where nothing is known of the stack."""
    arn, kind = RIGHT[name], KINDS[name]
    parts = arn.split(":", 5)
    service = "s3" if name != "BUCKET" else "sqs"
    yield "service", ":".join(["arn", "aws", service, *parts[3:]])
    yield "thing", ":".join([*parts[:5], ANOTHER[name]])
    yield "name", parts[5].rpartition("/")[2].rpartition(":")[2] or "mine"
    yield "cut", ":".join(parts[:5])
    yield "partition", arn.replace("arn:aws:", "arn:aws-moon:", 1)
    if kind.owned:
        yield "account", arn.replace(ACCOUNT, "1234")
    if kind.regional:
        yield "partition of the region", arn.replace(HOME, "cn-north-1")
        for region in (f"{HOME}a", "eu-central1", "Frankfurt", ""):
            yield f"region {region!r}", arn.replace(HOME, region)


@pytest.mark.parametrize("name", KINDS)
def test_of_each_kind_the_right_arn_is_taken_and_every_wrong_one_refused(name):
    kind = KINDS[name]

    assert arns.arn_fault(RIGHT[name], kind, region=HOME, account=ACCOUNT) == ""
    for what, arn in wrong_forms(name):
        fault = arns.arn_fault(arn, kind)
        assert fault.startswith(f"{arn!r} found ("), what
        assert f"{kind.form}, the ARN of {kind.what} allowed" in fault, what
    if kind.regional:
        assert f"in {HOME} allowed" in arns.arn_fault(
            RIGHT[name].replace(HOME, AWAY), kind, region=HOME
        )
    if kind.owned:
        assert f"of account {OTHER}" in arns.arn_fault(RIGHT[name], kind, account=OTHER)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_not_known_yet_passes(name):
    kind, parts = KINDS[name], RIGHT[name].split(":", 5)
    unknown = ["<Thing.Arn>", '{"Fn::ImportValue": "Thing"}', "{{resolve:ssm:/thing}}"]
    unknown += [":".join([*parts[:at], "<X>", *parts[at + 1 :]]) for at in range(1, 6)]

    assert [arns.arn_fault(each, kind, region=HOME, account=ACCOUNT) for each in unknown] == [
        ""
    ] * len(unknown)
