"""A synthesized stack without the CDK: its template and archives are deployed by hand."""

import json
import uuid

import pytest

from shardfleet_ops.cli import app as application
from tests.local.launcher.conftest import ROLE_FOR_ALL

HASH = "0123456789abcdef" * 4


@pytest.fixture
def assembly(tmp_path):
    return write_shop(tmp_path / "cdk.out")


def write_shop(folder):
    """Write what `cdk synth` would of a stack Shop with one function."""
    (folder / f"asset.{HASH}").mkdir(parents=True)
    (folder / f"asset.{HASH}/index.py").write_text("def handler(event, context):\n    return 7\n")
    code = {"S3Bucket": {"Fn::Sub": "cdk-hnb659fds-assets-1"}, "S3Key": f"{HASH}.zip"}
    settings = {"Runtime": "python3.13", "Role": ROLE_FOR_ALL, "Handler": "index.handler"}
    function = {"Type": "AWS::Lambda::Function", "Properties": {**settings, "Code": code}}
    template = {
        "Resources": {"F": function},
        "Outputs": {"F": {"Value": {"Ref": "F"}}},
        "Parameters": {"BootstrapVersion": {"Type": "String"}, "Own": {"Type": "String"}},
        "Rules": {"CheckBootstrapVersion": {"Assertions": []}},
    }
    write(folder / "Shop.template.json", template)
    properties = {"templateFile": "Shop.template.json"}
    artifact = {"type": "aws:cloudformation:stack", "properties": properties}
    write(folder / "manifest.json", {"artifacts": {"Shop": artifact}})
    write_assets(folder, f"asset.{HASH}")
    return folder


def write(file, body):
    file.write_text(json.dumps(body))


def write_assets(folder, path, packaging="zip"):
    def asset(name, path, packaging):
        destinations = {"here": {"bucketName": "b", "objectKey": f"{HASH}.zip"}}
        source = {"path": str(path), "packaging": packaging}
        return {"displayName": name, "source": source, "destinations": destinations}

    files = [
        asset("Fleet/Worker/Function/Code", path, packaging),
        asset("Shop Template", "Shop.template.json", "file"),
    ]
    write(folder / "Shop.assets.json", {"files": dict(enumerate(files))})


def run(assembly, out):
    return application.run(["template", "--app", str(assembly), "--out", str(out)])


@pytest.mark.processes
def test_its_archives_in_any_bucket_and_its_template_are_the_stack(
    assembly, embedded_aws, tmp_path
):
    assert run(assembly, tmp_path / "plain") == 0

    name, bucket = f"Plain{uuid.uuid4().hex[:8]}", f"mine-{uuid.uuid4().hex[:8]}"
    s3, cloudformation = embedded_aws.client("s3"), embedded_aws.client("cloudformation")
    s3.create_bucket(Bucket=bucket)
    (archive,) = (tmp_path / "plain/assets").iterdir()
    assert archive.name == f"fleet-worker-{HASH[:12]}.zip"
    s3.put_object(Bucket=bucket, Key=f"Shop/{archive.name}", Body=archive.read_bytes())
    given = {"AssetBucket": bucket, "AssetPrefix": "Shop/", "Own": "x"}
    cloudformation.create_stack(
        StackName=name,
        TemplateBody=(tmp_path / "plain/template.json").read_text("utf-8"),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in given.items()],
    )
    cloudformation.get_waiter("stack_create_complete").wait(
        StackName=name, WaiterConfig={"Delay": 1}
    )

    (stack,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
    (function,) = [each["OutputValue"] for each in stack["Outputs"]]
    answer = embedded_aws.client("lambda").invoke(FunctionName=function)
    assert answer["Payload"].read() == b"7"


def test_nothing_of_the_cdk_is_left_in_it_and_what_is_the_users_stays(assembly, tmp_path):
    assert run(assembly, tmp_path / "plain") == 0

    body = json.loads((tmp_path / "plain/template.json").read_text("utf-8"))
    assert sorted(body["Parameters"]) == ["AssetBucket", "AssetPrefix", "Own"]
    assert "Rules" not in body
    assert "hnb659fds" not in json.dumps(body)
    readme = (tmp_path / "plain/README.md").read_text("utf-8")
    assert "aws s3 cp assets s3://BUCKET/Shop/ --recursive" in readme


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "one is wanted"),
        (["--app", "cdk.out", "--handler", "a:b"], "one is wanted"),
        (["--app", "nowhere"], "no cloud assembly"),
    ],
)
def test_what_it_is_of_is_said_once(tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    assert application.run(["template", "--out", "plain", *options]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_written_over(assembly, tmp_path, capsys):
    (tmp_path / "plain").mkdir()

    assert run(assembly, tmp_path / "plain") == 2
    assert "plain exists" in capsys.readouterr().err
    assert not list((tmp_path / "plain").iterdir())


@pytest.mark.parametrize(
    ("path", "packaging", "words"),
    [("/elsewhere/layer", "zip", "were not installed"), ("file.txt", "file", "nested stacks")],
)
def test_what_cannot_be_written_so_is_refused(assembly, tmp_path, capsys, path, packaging, words):
    write_assets(assembly, path, packaging)

    assert run(assembly, tmp_path / "plain") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "plain").exists()
