"""A stale key is refused in the request's own protocol: a ClientError of one line."""

import re

import boto3
import pytest
from botocore import parsers, serialize, session
from botocore.config import Config
from botocore.exceptions import ClientError
from ministack import app as ministack_app

from shardfleet_local.access import AccessKey
from shardfleet_local.refusals import REFUSED, refusal_of
from shardfleet_ops.cli import app as application

# No services; and one that is signed by a library in C, which the project does not have.
NO_SERVICE = ("ecs-metadata", "imds", "cloudfront-keyvaluestore")
# Where the embedded AWS and botocore name a service otherwise.
BOTOCORE = {
    "airflow": "mwaa",
    "appsync-events": "appsync",
    "documentdb": "docdb",
    "elasticfilesystem": "efs",
    "elasticloadbalancing": "elbv2",
    "elasticmapreduce": "emr",
    "monitoring": "cloudwatch",
    "states": "stepfunctions",
    "tagging": "resourcegroupstaggingapi",
}
SERVICES = sorted(
    {BOTOCORE.get(name, name) for name in ministack_app.SERVICE_REGISTRY} - {*NO_SERVICE}
)
REASON = "The key is <stale> & done."
LOADER = session.get_session()


def model_of(service):
    return LOADER.get_service_model(service)


def an_operation(model):
    """Return an operation that is signed, and needs nothing."""
    operations = (model.operation_model(name) for name in model.operation_names)
    signed = [each for each in operations if each.auth_type != "none" and not each.auth]
    bare = [each for each in signed if not (each.input_shape and each.input_shape.required_members)]
    # A path is named by what is required.
    return next((each for each in bare if "{" not in each.http["requestUri"]), signed[0])


# What a parameter may be that nobody looks at; some endpoints are named by an ARN.
ANY = {
    "string": "arn:aws:cloudfront::111122223333:key-value-store/x",
    "structure": {},
    "list": [],
    "map": {},
    "boolean": True,
    "integer": 1,
    "long": 1,
}


def needed(operation):
    shape = operation.input_shape
    members = shape.required_members if shape else ()
    return {name: ANY[shape.members[name].type_name] for name in members}


def protocols(service):
    metadata = model_of(service).metadata
    return list(metadata.get("protocols", [metadata["protocol"]]))


@pytest.mark.parametrize("service", SERVICES)
def test_a_refusal_is_read_as_one_by_the_services_own_parser(service):
    for protocol in protocols(service):
        assert_is_read_as_one(service, protocol)


def assert_is_read_as_one(service, protocol):
    model = model_of(service)
    operation = an_operation(model)
    serializer = serialize.create_serializer(protocol, include_validation=False)
    request = serializer.serialize_to_request(needed(operation), operation)
    scope = f"Credential=AKIAX/20261127/us-east-1/{model.signing_name}/aws4_request"
    headers = {name.lower(): value for name, value in request["headers"].items()}
    headers["authorization"] = f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"

    told, body = refusal_of(headers, REASON)

    answer = {"status_code": REFUSED, "headers": told, "body": body, "context": {}}
    error = parsers.create_parser(protocol).parse(answer, operation.output_shape)["Error"]
    assert error["Code"] in {"AccessDenied", "AccessDeniedException"}
    assert error["Message"] == REASON


@pytest.fixture(scope="module")
def stale(embedded_aws):
    key = AccessKey()
    return {
        "endpoint_url": embedded_aws.endpoint_url,
        "region_name": "eu-central-1",
        "aws_access_key_id": key.id,
        "aws_secret_access_key": key.secret,
        "config": Config(
            inject_host_prefix=False,
            parameter_validation=False,
            retries={"total_max_attempts": 1},
        ),
    }


@pytest.mark.processes
@pytest.mark.parametrize("service", SERVICES)
def test_a_stale_key_is_one_line_of_boto3(stale, service):
    operation = an_operation(model_of(service))
    client = boto3.client(service, **stale)
    with pytest.raises(ClientError) as caught:
        client._make_api_call(operation.name, needed(operation))
    assert caught.value.response["Error"]["Code"] in {"AccessDenied", "AccessDeniedException"}
    assert "shardfleet local up" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.processes
def test_a_head_of_s3_has_no_body_and_is_a_client_error_too(stale):
    with pytest.raises(ClientError, match=r"\(403\)"):
        boto3.client("s3", **stale).head_bucket(Bucket="any")


COMMANDS = (
    "status",
    "leases",
    "leases --application any",
    "top --rounds 1",
    "doctor",
    "explain",
    "what-if",
    "where --key any",
    "pause --all --yes",
    "resume --all --yes",
    "drain --yes",
    "release any --yes",
    "rewind any --to TRIM_HORIZON --yes",
    "redrive --from s3://any/thing",
    "logs",
    "cost",
    "tail",
    "put --input {input}",
    "position export",
    "position export --application any --stream any",
    "migrate --from-java --yes",
    "dashboard",
)


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_a_stale_key_is_one_line_of_each_command(
    embedded_aws, stale, command, monkeypatch, capsys, tmp_path
):
    names = {
        **embedded_aws.environment(),
        "AWS_ACCESS_KEY_ID": stale["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": stale["aws_secret_access_key"],
    }
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    records = tmp_path / "input.jsonl"
    records.write_text('{"a": 1}\n', "utf-8")
    code = application.run(command.format(input=records).split())
    printed = capsys.readouterr()
    assert code != 0
    said = " ".join((printed.err + printed.out).split())
    assert "The access key id is not this server's" in said, said
    assert not re.search(r"Traceback|ResponseParserError", said)
    assert len(printed.err.splitlines()) <= 2, said
