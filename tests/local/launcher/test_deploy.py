"""Deploying a cloud assembly: assets, template, updates, failures, what the stack is made of."""

import hashlib
import io
import json
import uuid
import zipfile

import pytest
from botocore.handlers import json_decode_template_body

from shardfleet.errors import ConfigurationError
from shardfleet_local.aws.deploy import TEMPLATE_BODY_LIMIT, DeploymentFailed, deploy, zip_folder

BUCKET = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": "lambda.amazonaws.com"},
        }
    ],
}


class Assembly:
    """A hand-written cloud assembly with one stack."""

    def __init__(self, folder, stack_name):
        self.folder = folder
        self.stack_name = stack_name
        self.files = {}

    def asset(self, name, files):
        for path, text in files.items():
            file = self.folder / f"asset.{name}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return self.missing_asset(name)

    def missing_asset(self, name):
        """List an asset whose folder was never written: its bundling was skipped."""
        self.files[name] = self._entry(f"asset.{name}", "zip", f"{name}.zip")
        return {"S3Bucket": {"Fn::Sub": BUCKET}, "S3Key": f"{name}.zip"}

    def write(self, resources, outputs=None, *, padding=0):
        name = f"{self.stack_name}.template.json"
        template = {
            "Description": "x" * padding if padding < 1000 else "padded",
            "Metadata": {"padding": "x" * padding},
            "Parameters": {
                "BootstrapVersion": {
                    "Type": "AWS::SSM::Parameter::Value<String>",
                    "Default": "/cdk-bootstrap/hnb659fds/version",
                }
            },
            "Resources": resources,
            "Outputs": outputs or {},
        }
        text = json.dumps(template, indent=1)
        (self.folder / name).write_text(text)
        self.files["template"] = self._entry(name, "file", "template.json")
        (self.folder / f"{self.stack_name}.assets.json").write_text(
            json.dumps({"files": self.files})
        )
        artifact = {"type": "aws:cloudformation:stack", "properties": {"templateFile": name}}
        (self.folder / "manifest.json").write_text(
            json.dumps({"artifacts": {self.stack_name: artifact}})
        )
        return text

    def _entry(self, path, packaging, key):
        destination = {"bucketName": BUCKET, "objectKey": f"{self.stack_name}/{key}"}
        if packaging == "zip":
            destination["objectKey"] = key
        return {
            "source": {"path": path, "packaging": packaging},
            "destinations": {"d": destination},
        }


@pytest.fixture
def assembly(tmp_path):
    return Assembly(tmp_path, f"Stack{uuid.uuid4().hex[:8]}")


def function(code, layers=(), **properties):
    return {
        "Role": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": TRUST}},
        "Function": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Code": code,
                "Handler": "index.handler",
                "Runtime": "python3.13",
                "Role": {"Fn::GetAtt": ["Role", "Arn"]},
                "Layers": list(layers),
                "Timeout": 30,
                **properties,
            },
        },
    }


def layer(content):
    return {"Type": "AWS::Lambda::LayerVersion", "Properties": {"Content": content}}


def call(aws, name):
    answer = aws.client("lambda").invoke(FunctionName=name)
    return json.loads(answer["Payload"].read())


def test_the_same_files_give_the_same_archive(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, names in ((one, "ab"), (two, "ba")):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.py").write_text(name)
    assert zip_folder(one) == zip_folder(two)
    (two / "a.py").write_text("changed")
    assert zip_folder(one) != zip_folder(two)


def test_a_folder_that_was_not_bundled_gives_an_archive_with_a_note(tmp_path):
    with zipfile.ZipFile(io.BytesIO(zip_folder(tmp_path / "missing"))) as members:
        assert members.namelist() == ["EMPTY"]


def test_a_folder_that_is_no_assembly_is_named(tmp_path, embedded_aws):
    with pytest.raises(ConfigurationError, match=r"is no cloud assembly. Run `make synth` first"):
        deploy(tmp_path, "Stack", embedded_aws)


def test_a_stack_that_is_not_in_the_assembly_is_refused_with_those_that_are(assembly, embedded_aws):
    assembly.write({})
    with pytest.raises(ConfigurationError, match=f"no stack 'Other'; it has {assembly.stack_name}"):
        deploy(assembly.folder, "Other", embedded_aws)


@pytest.mark.processes
class TestInTheEmbeddedAws:
    def test_code_layers_and_outputs_arrive(self, assembly, embedded_aws):
        code = assembly.asset(
            f"code-{assembly.stack_name}",
            {"index.py": "import mine\ndef handler(event, context):\n    return mine.WHO\n"},
        )
        own = assembly.asset(f"own-{assembly.stack_name}", {"python/mine.py": "WHO = 'layer'\n"})
        third = assembly.missing_asset(f"third-{assembly.stack_name}")
        resources = {
            "Own": layer(own),
            "Third": layer(third),
            **function(code, [{"Ref": "Third"}, {"Ref": "Own"}]),
        }
        text = assembly.write(resources, {"Name": {"Value": {"Ref": "Function"}}})
        stack = deploy(assembly.folder, assembly.stack_name, embedded_aws)
        assert call(embedded_aws, stack.outputs["Name"]) == "layer"
        assert stack.of_type("AWS::Lambda::Function") == {"Function": stack.outputs["Name"]}
        assert stack.template_sha256 == hashlib.sha256(text.encode()).hexdigest()

    @pytest.mark.parametrize("padding", [0, 2 * TEMPLATE_BODY_LIMIT])
    def test_the_deployed_template_is_the_synthesized_one(self, assembly, embedded_aws, padding):
        topic = {"Topic": {"Type": "AWS::SNS::Topic", "Properties": {}}}
        text = assembly.write(topic, padding=padding)
        deploy(assembly.folder, assembly.stack_name, embedded_aws)
        client = embedded_aws.client("cloudformation")
        client.meta.events.unregister(
            "after-call.cloudformation.GetTemplate", json_decode_template_body
        )
        body = client.get_template(StackName=assembly.stack_name)["TemplateBody"]
        assert body == text, "byte for byte"

    def test_a_second_deployment_updates_the_code(self, assembly, embedded_aws):
        name = ""
        for answer in ("1", "2"):
            code = assembly.asset(
                f"code{answer}-{assembly.stack_name}",
                {"index.py": f"def handler(event, context):\n    return {answer}\n"},
            )
            assembly.write(function(code), {"Name": {"Value": {"Ref": "Function"}}})
            stack = deploy(assembly.folder, assembly.stack_name, embedded_aws)
            assert name in ("", stack.outputs["Name"])
            name = stack.outputs["Name"]
            assert call(embedded_aws, name) == int(answer)

    def test_a_deployment_without_changes_is_fine(self, assembly, embedded_aws):
        assembly.write({"Topic": {"Type": "AWS::SNS::Topic", "Properties": {}}})
        first = deploy(assembly.folder, assembly.stack_name, embedded_aws)
        assert deploy(assembly.folder, assembly.stack_name, embedded_aws) == first

    def test_a_failure_names_the_resource_and_the_reason(self, assembly, embedded_aws):
        assembly.write(
            {
                "Wrong": {
                    "Type": "AWS::CloudWatch::CompositeAlarm",
                    "Properties": {"AlarmRule": 'ALARM("nobody")'},
                }
            }
        )
        complaint = r"ROLLBACK_COMPLETE: Wrong \(AWS::CloudWatch::CompositeAlarm\): .*do not exist"
        with pytest.raises(DeploymentFailed, match=complaint):
            deploy(assembly.folder, assembly.stack_name, embedded_aws)

    def test_a_custom_resource_is_answered_by_a_function_of_the_stack(self, assembly, embedded_aws):
        code = """
            import json, urllib.request

            def handler(event, context):
                answer = {key: event[key] for key in ("StackId", "RequestId", "LogicalResourceId")}
                answer |= {"Status": "SUCCESS", "PhysicalResourceId": "one", "Data": {"Got": "it"}}
                request = urllib.request.Request(
                    event["ResponseURL"], data=json.dumps(answer).encode(), method="PUT")
                urllib.request.urlopen(request)
        """
        lines = "\n".join(line.removeprefix(" " * 12) for line in code.splitlines())
        custom = {
            "Type": "Custom::FirstRun",
            "Properties": {"ServiceToken": {"Fn::GetAtt": ["Function", "Arn"]}},
        }
        assembly.write(
            {**function({"ZipFile": lines}), "Custom": custom},
            {"Got": {"Value": {"Fn::GetAtt": ["Custom", "Got"]}}},
        )
        stack = deploy(assembly.folder, assembly.stack_name, embedded_aws)
        assert stack.outputs == {"Got": "it"}
