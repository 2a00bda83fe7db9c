"""
What an option refers to by an ARN, a key, a region or an instant is right before it leaves synth.

The table has every such option of every construct; each is given everything that is wrong with one
of its kind, and what is right or not known yet.
"""

import re
from dataclasses import fields

import pytest
from botocore.session import Session

from shardfleet.errors import ConfigurationError
from shardfleet_ops.template import arns
from shardfleet_ops.template.judging import judge
from shardfleet_ops.template.reading import Template

HOME, AWAY, ACCOUNT, OTHER = "eu-central-1", "us-east-1", "111122223333", "999999999999"
KINDS = {name: each for name, each in vars(arns).items() if isinstance(each, arns.ArnKind)}
RIGHT = {
    "ALARM": f"arn:aws:cloudwatch:{HOME}:{ACCOUNT}:alarm:deploying",
    "BUCKET": "arn:aws:s3:::given-up",
    "CONSUMER": f"arn:aws:kinesis:{HOME}:{ACCOUNT}:stream/orders/consumer/mine:1700000000",
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
    "CONSUMER": "stream/orders",
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


def test_partitions_are_those_of_the_sdk():
    for partition in Session().get_available_partitions():
        regions = Session().get_available_regions("ec2", partition, allow_non_regional=False)
        assert {arns.partition_of(region) for region in regions} <= {partition}, partition
        assert all(arns.region_fault(region) == "" for region in regions), partition
    assert set(Session().get_available_partitions()) == {"aws", *arns.PARTITIONS.values()}


def imports():
    """Return how a thing of each kind is imported by its ARN: kind -> (scope, id, arn)."""
    # It starts Node, which collecting the tests shall not.
    from aws_cdk import aws_cloudwatch as cw  # noqa: PLC0415
    from aws_cdk import aws_dynamodb as ddb  # noqa: PLC0415
    from aws_cdk import aws_iam as iam  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415
    from aws_cdk import aws_kms as kms  # noqa: PLC0415
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415
    from aws_cdk import aws_s3 as s3  # noqa: PLC0415
    from aws_cdk import aws_sns as sns  # noqa: PLC0415
    from aws_cdk import aws_sqs as sqs  # noqa: PLC0415

    def key(scope, name, arn):
        if alias := arn.partition(":alias/")[2]:
            return kms.Alias.from_alias_name(scope, name, f"alias/{alias}")
        return kms.Key.from_key_arn(scope, name, arn)

    def stream(scope, name, arn, **key):
        return kinesis.Stream.from_stream_attributes(scope, name, stream_arn=arn, **key)

    def table(scope, name, arn, **key):
        return ddb.Table.from_table_attributes(scope, name, table_arn=arn, **key)

    def bucket(scope, name, arn, **key):
        return s3.Bucket.from_bucket_attributes(scope, name, bucket_arn=arn, **key)

    def keyed(key):
        return {"key_arn": key["encryption_key"].key_arn} if key else {}

    def topic(scope, name, arn, **key):
        return sns.Topic.from_topic_attributes(scope, name, topic_arn=arn, **keyed(key))

    def queue(scope, name, arn, **key):
        arns_of = {"queue_arn": arn, **keyed(key)}
        return sqs.Queue.from_queue_attributes(scope, name, **arns_of)

    return {
        "ALARM": cw.Alarm.from_alarm_arn,
        "BUCKET": bucket,
        "CONSUMER": lambda _scope, _name, arn: arn,
        "FUNCTION": lambda_.Function.from_function_arn,
        "KEY": key,
        "LAYER": lambda_.LayerVersion.from_layer_version_arn,
        "POLICY": iam.ManagedPolicy.from_managed_policy_arn,
        "QUEUE": queue,
        "STREAM": stream,
        "TABLE": table,
        "TOPIC": topic,
    }


# Option: (its kind, whether it must be in the stack's region, and of the stack's account).
FLEET = {
    "stream": ("STREAM", False, False),
    "reading.consumer_arn": ("CONSUMER", False, False),
    "handler": ("FUNCTION", True, False),
    "worker.layers": ("LAYER", True, False),
    "tables.lease_table": ("TABLE", True, True),
    "tables.failed_queue": ("QUEUE", True, False),
    "tables.failed_bucket": ("BUCKET", False, False),
    "tables.failed_topic": ("TOPIC", True, False),
    "operations.encryption_key": ("KEY", True, False),
    "operations.permissions_boundary": ("POLICY", False, True),
    "monitoring.page": ("TOPIC", True, False),
    "monitoring.notice": ("TOPIC", True, False),
    "monitoring.quiet_while": ("ALARM", True, True),
}
SPARK = {
    "source": ("STREAM", False, False),
    "sink": ("STREAM", False, False),
    "buckets.work": ("BUCKET", False, False),
    "buckets.sink": ("BUCKET", False, False),
    "alarms.topics": ("TOPIC", True, False),
    "operations.encryption_key": ("KEY", True, False),
    "operations.permissions_boundary": ("POLICY", False, True),
}
MANY = {"layers", "page", "notice", "topics"}
STORES = {"STREAM", "TABLE", "QUEUE", "BUCKET", "TOPIC"}
KEYED = [
    (construct, option)
    for construct, options in (("fleet", FLEET), ("spark", SPARK))
    for option, (kind, *_) in options.items()
    if kind in STORES and not option.startswith(("monitoring", "alarms"))
]


@pytest.fixture
def construct(new_app, handler_folder):
    """Make a fleet or a pipeline, one option of which is of this ARN, in a stack with a home."""
    from aws_cdk import Environment, Stack  # noqa: PLC0415

    import shardfleet_cdk as cdk  # noqa: PLC0415

    imported = imports()
    groups = {
        "worker": cdk.WorkerOptions,
        "reading": cdk.FanOut,
        "tables": cdk.FleetTables,
        "operations": cdk.Operations,
        "monitoring": cdk.MonitoringOptions,
        "buckets": cdk.SparkBuckets,
        "alarms": cdk.SparkAlarms,
    }

    def make(of, option="", arn="", *, key="", **options):
        stack = Stack(new_app(), "Stack", env=Environment(account=ACCOUNT, region=HOME))
        if option:
            kind = (FLEET if of == "fleet" else SPARK)[option][0]
            keys = {"encryption_key": imported["KEY"](stack, "Key", key)} if key else {}
            thing = imported[kind](stack, "Thing", arn, **keys)
            group, _, name = option.partition(".")
            value = [thing] if name in MANY else thing
            options[group] = groups[group](**{name: value}) if name else value
        stream = imported["STREAM"](stack, "Orders", RIGHT["STREAM"])
        if of == "fleet":
            given = {"stream": stream, "handler": cdk.HandlerCode(folder=handler_folder)}
            return cdk.ShardFleet(stack, "Made", **{**given, **options})
        given = {"source": stream, "work": cdk.PipelineWork(transform="archive")}
        return cdk.SparkPipeline(stack, "Made", **{**given, **options})

    return make


def refused(make, *args, **options):
    """Return the refusal: ours, or the CDK's own, which comes before it where it knows better."""
    with pytest.raises((ConfigurationError, RuntimeError)) as error:
        make(*args, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("of", "option"),
    [*(("fleet", each) for each in FLEET), *(("spark", each) for each in SPARK)],
)
def test_every_option_refuses_what_is_of_another_kind_region_or_account(construct, of, option):
    kind, own_region, own_account = (FLEET if of == "fleet" else SPARK)[option]
    right, parts = RIGHT[kind], RIGHT[kind].split(":", 5)
    wrong = [f"arn:aws:states:{HOME}:{ACCOUNT}:stateMachine:mine"]
    wrong += [":".join([*parts[:5], ANOTHER[kind]])]
    if own_region:
        wrong.append(right.replace(HOME, AWAY))
    if own_account:
        wrong.append(right.replace(ACCOUNT, OTHER))

    for arn in wrong:
        told = refused(construct, of, option, arn)
        ours = rf"Stack/Made: {re.escape(option)}: '\S+' found \(.+\), arn:.+ allowed"
        # Of layers the CDK itself wants a version's ARN, of keys one with key/.
        assert re.match(ours, told) or "ARN must be in the format" in told, (arn, told)


def test_the_tables_have_every_option_of_every_construct_that_refers_to_something():
    import shardfleet_cdk as cdk  # noqa: PLC0415

    kinds = (
        "IStream|IFunction|ILayerVersion|ITable|IQueue|IBucket|ITopic|IKey|IManagedPolicy|IAlarm"
    )
    parameters = {
        **{f"reading.{f.name}": f.type for f in fields(cdk.FanOut)},
        **{f"worker.{f.name}": f.type for f in fields(cdk.WorkerOptions)},
        **{f"manager.{f.name}": f.type for f in fields(cdk.ManagerOptions)},
        **{f"tables.{f.name}": f.type for f in fields(cdk.FleetTables)},
        **{f"operations.{f.name}": f.type for f in fields(cdk.Operations)},
        **{f"monitoring.{f.name}": f.type for f in fields(cdk.MonitoringOptions)},
        **{f"buckets.{f.name}": f.type for f in fields(cdk.SparkBuckets)},
        **{f"alarms.{f.name}": f.type for f in fields(cdk.SparkAlarms)},
        **{f"spark.{f.name}": f.type for f in fields(cdk.SparkOptions)},
        **{f"work.{f.name}": f.type for f in fields(cdk.PipelineWork)},
        **cdk.ShardFleet.__init__.__annotations__,
        **cdk.SparkPipeline.__init__.__annotations__,
    }
    found = {
        name
        for name, kind in parameters.items()
        if re.search(rf"\b({kinds})\b", str(kind)) or name.endswith("_arn")
    }

    assert found == FLEET.keys() | SPARK.keys()


def test_all_that_is_right_is_taken(construct):
    for option, (kind, *_) in FLEET.items():
        key = RIGHT["KEY"] if ("fleet", option) in KEYED else ""
        assert construct("fleet", option, RIGHT[kind], key=key).stream
    # Of another region a stream may be, with its key there.
    there = {name: RIGHT[name].replace(HOME, AWAY) for name in ("STREAM", "KEY")}
    assert construct("fleet", "stream", there["STREAM"], key=there["KEY"]).stream


def test_an_alias_that_is_made_here_is_refused_too(construct, new_app):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kms as kms  # noqa: PLC0415

    import shardfleet_cdk as cdk  # noqa: PLC0415

    stack = Stack(new_app(), "Keys")
    alias = kms.Alias(stack, "Mine", alias_name="alias/mine", target_key=kms.Key(stack, "Key"))
    told = refused(construct, "fleet", operations=cdk.Operations(encryption_key=alias))

    assert "operations.encryption_key: 'arn:aws:kms:" in told
    assert "no alias" in told


@pytest.mark.parametrize(
    "wrong", [("orders/", "returns/"), (HOME, AWAY), (ACCOUNT, OTHER)], ids=lambda each: each[1]
)
def test_a_consumer_of_another_stream_is_refused(construct, wrong):
    told = refused(construct, "fleet", "reading.consumer_arn", RIGHT["CONSUMER"].replace(*wrong))
    assert f"a consumer of {RIGHT['STREAM']} allowed" in told


@pytest.mark.parametrize("region", ["eu-central1", f"{HOME}a", "Frankfurt"])
def test_a_stack_in_no_region_is_refused(new_app, handler_folder, region):
    from aws_cdk import Environment, Stack  # noqa: PLC0415

    import shardfleet_cdk as cdk  # noqa: PLC0415

    stack = Stack(new_app(), "Stack", env=Environment(account=ACCOUNT, region=region))
    stream = imports()["STREAM"](stack, "Orders", RIGHT["STREAM"])
    handler = cdk.HandlerCode(folder=handler_folder)

    with pytest.raises(ConfigurationError, match=f"region: '{region}' found, a region such as eu"):
        cdk.ShardFleet(stack, "Fleet", stream=stream, handler=handler)


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (1_700_000_000, "1700000000 found, which are seconds; milliseconds are 1700000000000"),
        (1_700_000_000_000_000, "which are microseconds"),
        (4_000_000_000_000, "a day from now: Kinesis refuses an instant in the future"),
        ("2096-10-02T07:06:40Z", "a day from now: Kinesis refuses an instant in the future"),
        ("soon", "'soon' found; allowed are epoch milliseconds, and ISO 8601 with a time zone"),
    ],
)
def test_an_instant_that_nobody_means_is_refused(construct, begin, words):
    config = {"initial_position": "AT_TIMESTAMP", "initial_timestamp_ms": begin}
    told = refused(construct, "fleet", config=config)

    assert re.match(r"Stack/Made: .*initial_timestamp_ms: ", told)
    assert words in told


def test_a_topics_own_key_may_be_used_and_awss_own_needs_no_right(construct):
    from aws_cdk.assertions import Template  # noqa: PLC0415

    for option, how in {"tables.failed_topic": "sns", "tables.failed_queue": "sqs"}.items():
        for key in (RIGHT["KEY"], f"arn:aws:kms:{HOME}:{ACCOUNT}:alias/aws/{how}"):
            config = {"on_exhausted": how}
            made = construct("fleet", option, RIGHT[FLEET[option][0]], key=key, config=config)
            policies = str(Template.from_stack(made.stream.stack).find_resources("AWS::IAM::Role"))
            assert (key in policies) == (key == RIGHT["KEY"]), (option, key)


@pytest.mark.parametrize(("of", "option"), KEYED)
def test_the_key_of_every_store_is_no_alias_and_in_the_stores_region(construct, of, option):
    kind = (FLEET if of == "fleet" else SPARK)[option][0]
    alias = f"arn:aws:kms:{HOME}:{ACCOUNT}:alias/mine"
    wrong = [alias, *([] if kind == "BUCKET" else [RIGHT["KEY"].replace(HOME, AWAY)])]

    for key in wrong:
        told = refused(construct, of, option, RIGHT[kind], key=key)
        assert told.startswith(f"Stack/Made: {option}'s encryption_key: '"), told
        assert "the ARN of a KMS key (no alias: a right on an alias gives nothing)" in told


# (Construct, option): what is wrong of it; the judge of templates, and so `doctor --before`, names
# it as the construct does. Nobody but AWS knows another account's table, boundary or alarm, nor
# in which region a bucket is.
WOULD_LEAVE = {
    ("fleet", "stream"): RIGHT["STREAM"].replace("stream/", "consumer/"),
    ("fleet", "reading.consumer_arn"): RIGHT["STREAM"],
    ("fleet", "handler"): RIGHT["FUNCTION"].replace(HOME, AWAY),
    ("fleet", "worker.layers"): RIGHT["LAYER"].replace(HOME, AWAY),
    ("fleet", "tables.lease_table"): RIGHT["TABLE"].replace(HOME, AWAY),
    ("fleet", "tables.failed_queue"): RIGHT["QUEUE"].replace(HOME, AWAY),
    ("fleet", "tables.failed_bucket"): RIGHT["QUEUE"],
    ("fleet", "tables.failed_topic"): RIGHT["TOPIC"].replace(HOME, AWAY),
    ("fleet", "operations.encryption_key"): f"arn:aws:kms:{HOME}:{ACCOUNT}:alias/mine",
    ("fleet", "operations.permissions_boundary"): f"arn:aws:iam::{ACCOUNT}:role/boundary",
    ("fleet", "monitoring.page"): RIGHT["MACHINE"],
    ("fleet", "monitoring.notice"): RIGHT["TOPIC"].replace(HOME, AWAY),
    ("fleet", "monitoring.quiet_while"): RIGHT["ALARM"].replace(HOME, AWAY),
    ("spark", "source"): f"{RIGHT['STREAM']}/consumer/mine:1",
    ("spark", "sink"): f"{RIGHT['STREAM']}/consumer/mine:1",
    ("spark", "buckets.work"): RIGHT["QUEUE"],
    ("spark", "buckets.sink"): RIGHT["QUEUE"],
    ("spark", "alarms.topics"): RIGHT["TOPIC"].replace(HOME, AWAY),
    ("spark", "operations.encryption_key"): f"arn:aws:kms:{HOME}:{ACCOUNT}:alias/mine",
    ("spark", "operations.permissions_boundary"): f"arn:aws:iam::{ACCOUNT}:role/boundary",
}


def test_of_every_option_something_wrong_is_here():
    every = {(of, option) for of, all_ in (("fleet", FLEET), ("spark", SPARK)) for option in all_}
    assert WOULD_LEAVE.keys() == every


@pytest.mark.parametrize(("of", "option"), WOULD_LEAVE)
def test_what_would_have_left_is_named_in_its_template(construct, monkeypatch, of, option):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk.assertions import Template as Assertions  # noqa: PLC0415

    from shardfleet_cdk import fleet, spark_pipeline  # noqa: PLC0415

    arn, ways = WOULD_LEAVE[of, option], {"queue": "sqs", "topic": "sns", "bucket": "s3"}
    way = ways.get(option.rpartition("failed_")[2])
    config = {"config": {"on_exhausted": way}} if way and of == "fleet" else {}
    assert f"Stack/Made: {option}: " in refused(construct, of, option, arn, **config)

    for module in (fleet, spark_pipeline):
        monkeypatch.setattr(module, "refuse_wrong_references", lambda *_: None)
    made = construct(of, option, arn, **config)
    body = Assertions.from_stack(Stack.of(made)).to_json()
    named = judge(Template(name="Stack", body=body, size=1, region=HOME))

    assert {fault.fact for fault in named if fault.certain} & {"I15", "I16"}, option
