"""What a Lambda process sees: import roots, variables, layers; and what it must not see."""

import io
import json
import os
import sys
import zipfile

import pytest

from shardfleet_local.aws.lambda_environment import (
    UnpackFailed,
    process_environment,
    search_path,
    unpack_code,
    unpack_layer,
)

ENVIRONMENT = """
    import json, os, sys

    def handler(event, context):
        if event:
            module = __import__(event)
            return [module.__file__, getattr(module, "WHO", None)]
        return [dict(os.environ), sys.path]
"""

WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"


def archive(files):
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as members:
        for name, text in files.items():
            members.writestr(name, text)
    return found.getvalue()


def distribution(root, *, pure):
    tag = "py3-none-any" if pure else "cp314-cp314-manylinux2014_aarch64"
    return {
        f"{root}thing/__init__.py": "WHO = 'bundled'\n",
        f"{root}thing-1.0.dist-info/RECORD": "thing/__init__.py,sha256=x,16\n"
        "thing-1.0.dist-info/RECORD,,\nthing-1.0.dist-info/WHEEL,,\n",
        f"{root}thing-1.0.dist-info/WHEEL": WHEEL.format(pure=str(pure).lower(), tag=tag),
    }


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_layer_is_unpacked_without_the_distributions_in_it(tmp_path):
    own = {"python/shardfleet/__init__.py": "WHO = 'layer'\n"}
    layer = unpack_layer(archive({**own, **distribution("python/", pure=True)}), tmp_path)
    assert files_in(layer) == ["python/shardfleet/__init__.py"]


def test_code_keeps_pure_distributions_and_loses_those_for_another_platform(tmp_path):
    own = {"index.py": ""}
    pure = unpack_code(archive({**own, **distribution("", pure=True)}), tmp_path)
    compiled = unpack_code(archive({**own, **distribution("", pure=False)}), tmp_path)
    assert "thing/__init__.py" in files_in(pure)
    assert files_in(compiled) == ["index.py"]


def test_the_same_archive_is_unpacked_once(tmp_path):
    content = archive({"index.py": "A = 1\n"})
    folder = unpack_code(content, tmp_path)
    assert unpack_code(content, tmp_path) == folder
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", ["../outside.py", "/outside.py"])
def test_an_entry_that_would_leave_its_folder_is_refused(tmp_path, name):
    with pytest.raises(UnpackFailed, match="would leave its folder"):
        unpack_code(archive({name: ""}), tmp_path / "store")
    assert not (tmp_path / "outside.py").exists()


def test_something_that_is_no_archive_is_refused(tmp_path):
    with pytest.raises(UnpackFailed, match="layer is not a zip file"):
        unpack_layer(b"no zip", tmp_path)


def test_the_task_root_comes_first_and_the_last_layer_before_the_others(tmp_path):
    roots = search_path(tmp_path / "task", [tmp_path / "one", tmp_path / "two"])
    own = [root for root in roots if not root.endswith("site-packages")]
    assert own == [str(tmp_path / each) for each in ("task", "two/python", "one/python")]


def test_reserved_names_cannot_be_set_and_the_launcher_wins_over_the_function():
    config = {"Environment": {"Variables": {"AWS_REGION": "moon", "BOX": "840", "MODE": "a"}}}
    environment = process_environment(
        config, service={"AWS_REGION": "eu-west-1"}, extra={"BOX": "2", "_HANDLER": "no"}
    )
    assert environment["AWS_REGION"] == "eu-west-1"
    assert environment["BOX"] == "2"
    assert environment["MODE"] == "a"
    assert "_HANDLER" not in environment


@pytest.mark.processes
class TestInAProcess:
    def test_lambdas_own_variables_are_there_and_the_servers_are_not(
        self, make_function, embedded_aws
    ):
        function = make_function(ENVIRONMENT, Environment={"Variables": {"BOX": "840"}})
        (environment, _), _ = function.invoke()
        assert environment["BOX"] == "840"
        assert environment["AWS_LAMBDA_FUNCTION_NAME"] == function.name
        assert environment["AWS_ENDPOINT_URL"] == embedded_aws.endpoint_url
        assert environment["AWS_REGION"] == embedded_aws.region
        assert environment["AWS_EXECUTION_ENV"] == "AWS_Lambda_python3.13"
        leaked = {"GATEWAY_PORT", "MINISTACK_ACCOUNT_ID", "SFN_WAIT_SCALE", "VIRTUAL_ENV"}
        assert not leaked & environment.keys()
        assert not [name for name in environment if name.startswith("_SHARDFLEET")]

    def test_injected_variables_appear_in_the_process_and_in_no_configuration(
        self, make_function, embedded_aws
    ):
        embedded_aws.set_lambda_environment({"SHARDFLEET_FAULT": "slow"})
        try:
            function = make_function(ENVIRONMENT)
            (environment, _), _ = function.invoke()
        finally:
            embedded_aws.set_lambda_environment({})
        assert environment["SHARDFLEET_FAULT"] == "slow"
        described = embedded_aws.client("lambda").get_function_configuration(
            FunctionName=function.name
        )
        assert "SHARDFLEET_FAULT" not in json.dumps(described, default=str)

    def test_a_deployed_layer_wins_over_what_is_installed(self, make_function, embedded_aws):
        layer = embedded_aws.client("lambda").publish_layer_version(
            LayerName="own",
            Content={"ZipFile": archive({"python/shardfleet/__init__.py": "WHO = 'layer'\n"})},
        )
        function = make_function(ENVIRONMENT, Layers=[layer["LayerVersionArn"]])
        (origin, who), _ = function.invoke("shardfleet")
        assert who == "layer", origin

    def test_what_no_layer_brings_comes_from_the_local_environment(self, make_function):
        (origin, _), _ = make_function(ENVIRONMENT).invoke("boto3")
        assert origin.startswith((os.path.realpath(sys.prefix), sys.prefix))

    def test_the_launchers_own_folder_is_not_importable(self, make_function):
        payload, kind = make_function(ENVIRONMENT).invoke("lambda_bootstrap")
        assert kind == "Unhandled"
        assert payload["errorType"] == "ModuleNotFoundError"

    def test_the_context_is_lambdas(self, make_function, embedded_aws):
        function = make_function(
            """
            def handler(event, context):
                return {
                    "name": context.function_name,
                    "version": context.function_version,
                    "memory": context.memory_limit_in_mb,
                    "arn": context.invoked_function_arn,
                    "left": context.get_remaining_time_in_millis(),
                    "id": len(context.aws_request_id),
                }
            """,
            MemorySize=512,
            Timeout=20,
        )
        context, _ = function.invoke()
        assert 10_000 < context.pop("left") <= 20_000
        arn = f"arn:aws:lambda:us-east-1:{embedded_aws.account_id}:function:{function.name}"
        assert context == {
            "name": function.name, "version": "$LATEST", "memory": "512", "arn": arn, "id": 36,
        }  # fmt: skip

    def test_log_lines_are_delivered_while_the_function_still_runs(
        self, make_function, eventually, tmp_path
    ):
        gate = tmp_path / "gate"
        function = make_function(
            """
            import os, time

            def handler(event, context):
                print("waiting")
                while not os.path.exists(event):
                    time.sleep(0.05)
            """,
            Timeout=120,
        )
        client = function.aws.client("lambda")
        client.invoke(
            FunctionName=function.name, Payload=json.dumps(str(gate)), InvocationType="Event"
        )
        eventually(lambda: _logged(function, "waiting"))
        assert not _logged(function, "REPORT")
        gate.touch()
        eventually(lambda: _logged(function, "REPORT"))

    def test_logging_is_formatted_as_in_lambda(self, make_function):
        function = make_function(
            """
            import logging

            def handler(event, context):
                logging.warning("stock is low")
                return context.aws_request_id
            """
        )
        request_id, _ = function.invoke()
        (line,) = [line for line in function.log_lines() if "stock" in line]
        level, _, logged_id, message = line.split("\t")
        assert (level, logged_id, message) == ("[WARNING]", request_id, "stock is low")


def _logged(function, text):
    return [line for line in function.log_lines() if text in line]
