"""Synthesized once per session, because every synth costs seconds: the variants of a fleet."""

import functools
import json

import pytest

HANDLER = "def handle(batch):\n    pass\n"
PACKED_HANDLER = "async def collect(batch):\n    pass\n"


@pytest.fixture(scope="session", autouse=True)
def linter_read_once():
    """
    Let cfn-lint load its rules' modules, and the schemas they read, once in a process.

    It does so for each template, for 0.4 s of processor time; its rules are made anew all the same.
    """
    from cfnlint import helpers  # noqa: PLC0415  # Slow to import.

    with pytest.MonkeyPatch.context() as patch:
        for name in ("import_filename", "load_resource"):
            patch.setattr(helpers, name, functools.cache(getattr(helpers, name)))
        yield


@pytest.fixture(scope="session")
def handler_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handler")
    (folder / "handler.py").write_text(HANDLER, "utf-8")
    return folder


@pytest.fixture(scope="session")
def packed_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    (folder / "clicks.py").write_text(PACKED_HANDLER, "utf-8")
    (folder / "requirements.txt").write_text("# one\norjson==3.13.0\n", "utf-8")
    return folder


@pytest.fixture
def new_app():
    """Make an app in which nothing installs what a template does not depend on."""
    from aws_cdk import App  # noqa: PLC0415

    from shardfleet_cdk.synthesis import NO_BUNDLING  # noqa: PLC0415

    return lambda: App(context=NO_BUNDLING)


@pytest.fixture(scope="session")
def assembly(tmp_path_factory, handler_folder, packed_folder):
    """The variants, each a stack of one app that cdk-nag judges: template and report by name."""
    # Imported here, because it starts Node, which collecting the tests shall not.
    from tests.cdk import variants  # noqa: PLC0415

    outdir = tmp_path_factory.mktemp("assembly")
    variants.synthesize_all(outdir, plain=handler_folder, packed=packed_folder)
    return outdir


@pytest.fixture(scope="session")
def template_of(assembly):
    def read(stack):
        return json.loads((assembly / f"{stack}.template.json").read_text("utf-8"))

    return read


@pytest.fixture(scope="session")
def minimum(template_of):
    return template_of("Minimum")


@pytest.fixture(scope="session")
def everything(template_of):
    return template_of("Everything")


@pytest.fixture(scope="session")
def existing_parts(template_of):
    return template_of("ExistingParts")
