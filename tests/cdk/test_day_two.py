"""The page about day two: endpoints by what the roles may call, and how many fleets fit."""

from tests.facts.table import all_operations
from tests.facts.test_facts import NAMES_OF_ACTIONS, actions_in, in_sdk_words
from tests.test_tidy import ROOT

# An endpoint's name is the service's, but for these; the tables' and buckets' are of no charge.
ENDPOINTS = {"kinesis": "kinesis-streams", "cloudwatch": "monitoring"}
GATEWAYS = {"dynamodb", "s3"}
ARN = "arn:aws:kinesis:eu-central-1:111122223333:stream/orders"
FUNCTION = "arn:aws:lambda:eu-central-1:111122223333:function:orders"


def calls_of(scope, role):
    """Return the operations of ours that a construct's role may call."""
    from aws_cdk.assertions import Template  # noqa: PLC0415 - Node starts with it

    roles = Template.from_stack(scope).find_resources("AWS::IAM::Role")
    found = {each for name, body in roles.items() if role in name for each in actions_in(body)}
    named = {NAMES_OF_ACTIONS.get(each, each) for each in map(in_sdk_words, found)}
    return named & set(all_operations()) - {"sts AssumeRole"}


def table(worker, job):
    """Return the rows of the page."""
    by_service = {}
    for column, calls in enumerate((worker, job)):
        for each in sorted(calls):
            service, operation = each.split()
            by_service.setdefault(service, ([], []))[column].append(operation)
    return [
        f"| `{ENDPOINTS.get(service, service)}`{' (gateway)' * (service in GATEWAYS)} | "
        f"{' | '.join(', '.join(each) for each in columns)} |".replace("|  |", "| |")
        for service, columns in sorted(by_service.items())
    ]


def test_the_page_has_the_endpoints_that_worker_and_job_need(new_app, handler_folder):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415

    import shardfleet_cdk as cdk  # noqa: PLC0415

    def stack(name):
        made = Stack(new_app(), name)
        return made, kinesis.Stream.from_stream_arn(made, "Orders", ARN)

    worker = set()
    for how in ("sqs", "sns"):
        scope, stream = stack("Fleet")
        function = lambda_.Function.from_function_arn(scope, "Function", FUNCTION)
        config = {"on_exhausted": how, "tumbling_window_ms": 60_000}
        cdk.ShardFleet(scope, "Made", stream=stream, handler=function, config=config)
        worker |= calls_of(scope, "WorkerRole")
    scope, stream = stack("Spark")
    code = cdk.TransformCode(folder=handler_folder, function="handler:handle")
    work = cdk.PipelineWork(payload="avro-glue", schema='{"type": "record", "fields": []}')
    cdk.SparkPipeline(scope, "Made", source=stream, sink=stream, code=code, work=work)
    rows = table(worker, calls_of(scope, "JobRole"))
    page = (ROOT / "docs/day-two.md").read_text("utf-8")

    assert "\n".join(rows) in page, "docs/day-two.md should have:\n" + "\n".join(rows)


def test_the_page_says_how_many_fleets_fit_an_account(template_of):
    resources = template_of("Two")["Resources"].values()
    kinds = [each["Type"] for each in resources]
    roles = kinds.count("AWS::IAM::Role") // 2
    page = (ROOT / "docs/day-two.md").read_text("utf-8")

    assert f"1,000 roles (fact I17), {roles} a fleet: {1_000 // roles} fleets" in page
