"""Third-party packages: installed by the real pip from a wheel made here; hashed by demand."""

import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cdk.templates import only

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "tinything-1.0-py3-none-any.whl"
LEFT_OVER = b"left over"


@pytest.fixture(scope="session")
def bundling():
    # Imported here, because it starts Node, which collecting the tests shall not.
    from shardfleet_cdk import bundling  # noqa: PLC0415

    return bundling


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder with one wheel, and pip told to look nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("tinything.py", "SIZE = 'tiny'\n")
        about = "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n"
        wheel.writestr("tinything-1.0.dist-info/METADATA", about)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("tinything-1.0.dist-info/WHEEL", tags)
        wheel.writestr("tinything-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def user_folder(tmp_path):
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "handler.py").write_text("def handle(batch): ...\n", "utf-8")
    (folder / "__pycache__").mkdir()
    for python in ("311", "314"):
        (folder / f"__pycache__/handler.cpython-{python}.pyc").write_bytes(LEFT_OVER)
    (folder / "requirements.txt").write_text("tinything==1.0  # small\n", "utf-8")
    return folder


def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_function_is_bundled_with_its_own_files_and_its_packages(
    bundling, wheels, user_folder, tmp_path
):
    output = tmp_path / "asset"
    output.mkdir()

    assert bundling.PipBundling(user_folder, copy=True).try_bundle(str(output), None)

    found = names(output)
    assert {"handler.py", "requirements.txt", "tinything.py"} <= found
    # Byte code is of Lambda's Python, where this machine has it to make some; none came along.
    byte_code = {name for name in found if name.endswith(".pyc")}
    assert all(name.endswith(".cpython-314.pyc") for name in byte_code)
    assert not any((output / name).read_bytes() == LEFT_OVER for name in byte_code)


@pytest.fixture
def lock_folder(wheels, tmp_path):
    """A folder of ours: its requirements are a lock, here of the one wheel there is."""
    folder = tmp_path / "ours"
    folder.mkdir()
    digest = hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest()
    lock = f"tinything==1.0 \\\n    --hash=sha256:{digest}\n"
    (folder / "requirements.txt").write_text(lock, "utf-8")
    return folder


def test_a_layer_is_bundled_with_packages_alone_in_its_python_folder(
    bundling, wheels, lock_folder, tmp_path
):
    output = tmp_path / "asset"
    output.mkdir()

    assert bundling.PipBundling(lock_folder, inside="python").try_bundle(str(output), None)

    assert "python/tinything.py" in names(output)
    assert "requirements.txt" not in names(output)


# What may have happened to a lock: another file of the same name and version, and a line that has
# lost its hashes.
TAMPERED = [(r"sha256:\w{8}", "sha256:" + 8 * "0"), (r"(?s) \\\n.*", "\n")]


@pytest.mark.parametrize("change", TAMPERED)
@pytest.mark.parametrize("part", ["layer", "layer/sdk", "spark"])
def test_a_changed_hash_of_a_deployed_package_fails_the_synthesis(
    bundling, lock_folder, tmp_path, monkeypatch, part, change
):
    from aws_cdk import App, Stack  # noqa: PLC0415

    from shardfleet_cdk import layers, spark_environment  # noqa: PLC0415

    lock = lock_folder / "requirements.txt"
    lock.write_text(re.sub(*change, lock.read_text("utf-8")), "utf-8")
    real = layers.asset_folder
    for module in (layers, spark_environment):
        monkeypatch.setattr(
            module, "asset_folder", lambda name: lock_folder if name == part else real(name)
        )
    monkeypatch.setattr(bundling, "compile_folder", lambda *_, **__: None)
    monkeypatch.setattr(bundling, "prune", lambda *_: None)
    stack = Stack(App(outdir=str(tmp_path / "out")), "Stack")

    synthesize = {
        "layer": lambda: layers.FleetLayers(stack, "Layers"),
        "layer/sdk": lambda: layers.FleetLayers(stack, "Layers", sdk_services=[]),
        "spark": lambda: spark_environment.environment_asset(stack, "Spark", code=None),
    }

    with pytest.raises((bundling.BundlingFailed, RuntimeError), match=r"(?i)hash"):
        synthesize[part]()


def test_what_a_lock_does_not_list_is_not_installed(bundling, wheels, lock_folder, tmp_path):
    command = bundling.pip_command(lock_folder / "requirements.txt", tmp_path, locked=True)

    assert {"--require-hashes", "--no-deps"} <= set(command)


def locked(name):
    text = (ROOT / name).read_text("utf-8")
    return {
        entry.split(" ")[0]: set(re.findall(r"sha256:\w{64}", entry))
        for entry in re.split(r"\n(?=[a-z])", text)
        if "==" in entry
    }


@pytest.mark.parametrize("name", ["layer", "layer/sdk", "spark"])
def test_what_is_deployed_is_what_was_locked(name):
    deployed, everything = locked(f"{name}/requirements.txt"), locked("requirements.lock")

    assert deployed
    assert all(deployed.values())
    for pin, hashes in deployed.items():
        assert hashes <= everything[pin], pin


def test_what_pip_cannot_install_is_reported_with_pips_words(
    bundling, wheels, user_folder, tmp_path
):
    requirements = user_folder / "requirements.txt"
    requirements.write_text("hugething==2.0\n", "utf-8")

    with pytest.raises(bundling.BundlingFailed) as refused:
        bundling.PipBundling(user_folder).try_bundle(str(tmp_path / "asset"), None)

    assert str(requirements) in str(refused.value)
    assert "for Python 3.14 on aarch64 (wheels only)" in str(refused.value)
    assert "hugething" in str(refused.value)


def test_pip_is_asked_for_wheels_of_lambdas_platform(bundling):
    command = bundling.pip_command(Path("requirements.txt"), Path("out"))

    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert {"manylinux2014_aarch64", "manylinux_2_28_aarch64", "3.14"} <= set(command)
    assert {"--only-binary=:all:", "--no-compile"} <= set(command)


def test_comments_and_blank_lines_are_no_requirements(bundling, user_folder):
    (user_folder / "requirements.txt").write_text("\n# nothing\n  # here\n", "utf-8")

    assert bundling.requirement_lines(user_folder) == ()
    assert bundling.requirement_lines(user_folder / "__pycache__") == ()


@pytest.fixture
def synthesize(bundling):
    """Synthesize a folder, bundled as a function, and return the asset's key in the template."""
    from aws_cdk import App, Stack  # noqa: PLC0415
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415

    def synthesize(folder, outdir, **context):
        app = App(outdir=str(outdir), context=context)
        code = bundling.bundled_code(folder, copy=True)
        lambda_.LayerVersion(Stack(app, "Stack"), "Layer", code=code)
        app.synth()
        template = json.loads((outdir / "Stack.template.json").read_text("utf-8"))
        return only(template, "AWS::Lambda::LayerVersion")["Content"]["S3Key"]

    return synthesize


def test_what_is_bundled_already_is_not_installed_again(
    bundling, synthesize, wheels, user_folder, tmp_path, monkeypatch
):
    first = synthesize(user_folder, tmp_path / "out")

    def no_pip(*_):
        message = "pip was asked again"
        raise AssertionError(message)

    monkeypatch.setattr(bundling, "pip_command", no_pip)
    assert synthesize(user_folder, tmp_path / "out") == first
    assert len(list((tmp_path / "out").rglob("tinything.py"))) == 1


@pytest.fixture
def key_of(synthesize, tmp_path):
    from shardfleet_cdk.synthesis import NO_BUNDLING  # noqa: PLC0415

    return lambda folder: synthesize(folder, tmp_path / "out", **NO_BUNDLING)


def test_the_key_follows_code_requirements_and_python_version_and_nothing_else(
    bundling, key_of, user_folder, monkeypatch
):
    first = key_of(user_folder)
    (user_folder / "__pycache__/other.cpython-311.pyc").write_bytes(b"newer")
    (user_folder / "requirements.txt").touch()
    assert key_of(user_folder) == first

    (user_folder / "handler.py").write_text("def handle(batch): return None\n", "utf-8")
    second = key_of(user_folder)
    (user_folder / "requirements.txt").write_text("tinything==1.1\n", "utf-8")
    third = key_of(user_folder)
    older = bundling.Platform(
        bundling.PLATFORM.runtime, bundling.PLATFORM.architecture, "3.13", "aarch64"
    )
    monkeypatch.setattr(bundling, "PLATFORM", older)
    fourth = key_of(user_folder)

    assert len({first, second, third, fourth}) == 4
