"""An edited file becomes the function's new version; who runs the old one is told to end."""

import threading

import pytest

from shardfleet_local.aws.deploy import StackOutputs
from shardfleet_local.own.reloading import AGAIN_S, DeployedHandler, Reloader

pytestmark = pytest.mark.processes

CODE = """
import os, signal, time

def handler(event, context):
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append("told"))
    print("may be told")
    while event == "stay" and not told:
        time.sleep(0.02)
    return [{version}, os.environ.get("OWN"), *told]
"""


class Edited:
    """A function behind an alias, the folder it was made of, and who looks at the folder."""

    def __init__(self, made, folder):
        self.function, self.folder, self.said = made, folder, []
        self.client = made.aws.client("lambda")
        self.alias = {"FunctionName": f"{made.name}:live"}
        version = self.client.publish_version(FunctionName=made.name)["Version"]
        self.client.create_alias(FunctionName=made.name, Name="live", FunctionVersion=version)
        self.write(CODE.format(version=1))
        handler = DeployedHandler(logical_id="F", folder=folder, function="index:handler")
        self.now_s = 0.0
        self._reloader = Reloader(
            made.aws, [handler], say=self.said.append, clock=lambda: self.now_s
        )
        self._stack = StackOutputs(stack_name="S", template_sha256="", resources={"F": made.name})

    def write(self, text):
        (self.folder / "index.py").write_text(text)

    def look(self):
        self._reloader.look(self._stack)

    def ask(self, event="null"):
        return self.client.invoke(**self.alias, Payload=event)["Payload"].read().decode()


@pytest.fixture
def edited(make_function, tmp_path):
    made = make_function(
        CODE.format(version=1), Environment={"Variables": {"OWN": "x"}}, Timeout=30
    )
    return Edited(made, tmp_path)


def test_an_edit_is_the_next_invocations_code_and_the_running_one_is_told_to_end(
    edited, eventually
):
    answers = []
    staying = threading.Thread(target=lambda: answers.append(edited.ask('"stay"')))
    staying.start()
    eventually(lambda: any("may be told" in line for line in edited.function.log_lines()))
    edited.look()
    assert edited.said == []
    edited.write(CODE.format(version=22))
    edited.look()

    assert edited.ask() == '[22, "x"]'
    staying.join()
    assert answers == ['[1, "x", "told"]']
    edited.look()
    assert edited.said == ["reloaded index:handler: the next batch is handled by the new code"]


def test_code_that_cannot_be_imported_is_named_once_and_the_code_before_goes_on(edited):
    edited.write("x = 1\ndef handler(:\n")
    edited.look()
    edited.look()

    (said,) = edited.said
    assert said.startswith("not reloaded, the code before goes on: ")
    assert f"{edited.folder}/index.py" in said
    assert "line 2" in said
    assert edited.ask() == '[1, "x"]'


def test_code_that_was_refused_is_tried_again_for_what_it_lacked_may_be_there(edited, tmp_path):
    late = tmp_path.parent / "late"
    edited.write(
        f"import sys\nsys.path.append({str(late)!r})\nimport prices\n{CODE.format(version=9)}"
    )
    for edited.now_s in (0, AGAIN_S, 2 * AGAIN_S):
        edited.look()
    assert ["'prices'" in said for said in edited.said] == [True]
    late.mkdir()
    (late / "prices.py").touch()
    edited.look()
    assert edited.ask() == '[1, "x"]'  # Not yet.
    edited.now_s = 3 * AGAIN_S
    edited.look()
    assert edited.ask() == '[9, "x"]'
    assert len(edited.said) == 2


def test_code_is_tried_with_the_functions_own_variables(edited):
    edited.write("import os\nSEEN = os.environ['OWN']\n" + CODE.format(version=3))
    edited.look()

    assert edited.ask() == '[3, "x"]'
