"""Third-party packages: installed by the real uv from wheels made here; hashed by demand."""

import functools
import hashlib
import json
import os
import re
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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


@pytest.fixture(scope="session")
def platform(bundling):
    """What a fleet runs on by default, and the three ways to differ from it."""
    from shardfleet_cdk.lambda_platform import Platform  # noqa: PLC0415

    return Platform("3.14", "aarch64")


def wheel(folder, name, *, requires=(), tag="py3-none-any", modules=()):
    """Write a wheel with a module of its name, and say where."""
    file = folder / f"{name}-1.0-{tag}.whl"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    with zipfile.ZipFile(file, "w") as archive:
        for module in (f"{name}.py", *modules):
            archive.writestr(module, "SIZE = 'tiny'\n")
        needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", about + needs)
        tags = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", tags)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return file


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder with one wheel, and uv told to look nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "tinything")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
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
    bundling, platform, wheels, user_folder, tmp_path
):
    output = tmp_path / "asset"
    output.mkdir()
    (user_folder / "tinything.py").write_text("SIZE = 'mine'\n", "utf-8")

    bundler = bundling.PackageBundling(user_folder, platform=platform, copy=True)
    assert bundler.try_bundle(str(output), None)

    found = names(output)
    assert {"handler.py", "requirements.txt", "tinything-1.0.dist-info/METADATA"} <= found
    assert (output / "tinything.py").read_text("utf-8") == "SIZE = 'mine'\n"
    assert ".lock" not in found
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
    bundling, platform, wheels, lock_folder, tmp_path
):
    output = tmp_path / "asset"
    output.mkdir()

    bundler = bundling.PackageBundling(lock_folder, platform=platform, inside="python")
    assert bundler.try_bundle(str(output), None)

    assert "python/tinything.py" in names(output)
    assert "requirements.txt" not in names(output)


# A package that needs another one from the next Python on, and one on each processor (finding A5:
# `webob` needs `legacy-cgi; python_version >= "3.13"`).
MARKED = (
    'newer; python_version >= "3.13"',
    'arm; platform_machine == "aarch64"',
    'intel; platform_machine == "x86_64"',
)
WANTED = [
    ("3.12", "x86_64", {"intel"}),
    ("3.14", "x86_64", {"intel", "newer"}),
    ("3.14", "aarch64", {"arm", "newer"}),
]


@pytest.fixture
def marked(wheels, user_folder):
    wheel(wheels, "marked", requires=MARKED)
    for name in ("newer", "arm", "intel"):
        wheel(wheels, name)
    # One file for each Python and processor, as compiled packages have them.
    for tag in ("cp312-cp312-manylinux_2_28_x86_64", "cp314-cp314-manylinux_2_28_x86_64"):
        wheel(wheels, "built", tag=tag, modules=[f"of_{tag}.py"])
    tag = "cp314-cp314-manylinux_2_28_aarch64"
    wheel(wheels, "built", tag=tag, modules=[f"of_{tag}.py"])
    (user_folder / "requirements.txt").write_text("marked==1.0\nbuilt==1.0\n", "utf-8")
    return user_folder


@pytest.mark.parametrize(("python_version", "machine", "wanted"), WANTED)
def test_requirements_are_chosen_for_lambdas_python_and_processor_and_not_for_this_one(
    bundling, marked, tmp_path, python_version, machine, wanted
):
    from shardfleet_cdk.lambda_platform import Platform  # noqa: PLC0415

    output = tmp_path / "asset"
    output.mkdir()
    asked = Platform(python_version, machine)

    bundling.PackageBundling(marked, platform=asked, copy=True).try_bundle(str(output), None)

    found = {Path(name).stem for name in names(output)}
    assert found & {"newer", "arm", "intel"} == wanted
    digits = python_version.replace(".", "")
    built = {name for name in found if name.startswith("of_cp")}
    assert built == {f"of_cp{digits}-cp{digits}-manylinux_2_28_{machine}"}


def test_a_spark_archive_has_what_its_image_needs(bundling, marked, wheels, tmp_path, monkeypatch):
    """EMR's Python is 3.11: the package for newer ones is left out, that for its processor not."""
    from shardfleet_cdk import spark_environment  # noqa: PLC0415

    (marked / "requirements.txt").write_text("marked==1.0\n", "utf-8")
    spark = tmp_path / "spark"
    spark.mkdir()
    digest = hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest()
    (spark / "requirements.txt").write_text(f"tinything==1.0 --hash=sha256:{digest}\n", "utf-8")
    monkeypatch.setattr(
        spark_environment, "asset_folder", lambda name: spark if name == "spark" else ROOT / name
    )
    output = tmp_path / "asset"

    spark_environment._Bundling(marked).try_bundle(str(output), None)

    found = names(output)
    assert {"tinything.py", "marked.py", "arm.py", "handler.py"} <= found
    assert not {"newer.py", "intel.py"} & found
    assert "shardfleet/domain/stream/shards.py" in found
    assert not [
        name for name in found if name.startswith(("shardfleet_ops/cli", "shardfleet/runtime"))
    ]


# What may have happened to a lock: another file of the same name and version, and a line that has
# lost its hashes.
TAMPERED = [(r"sha256:\w{8}", "sha256:" + 8 * "0"), (r"(?s) \\\n.*", "\n")]


@pytest.mark.parametrize("change", TAMPERED)
@pytest.mark.parametrize("part", ["layer", "layer/sdk", "spark"])
def test_a_changed_hash_of_a_deployed_package_fails_the_synthesis(
    bundling, lock_folder, tmp_path, monkeypatch, part, change
):
    from aws_cdk import App, Stack  # noqa: PLC0415

    from shardfleet_cdk import lambda_platform, layers, spark_environment  # noqa: PLC0415

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

    layered = {"platform": lambda_platform.lambda_platform()}
    synthesize = {
        "layer": lambda: layers.FleetLayers(stack, "Layers", **layered),
        "layer/sdk": lambda: layers.FleetLayers(stack, "Layers", sdk_services=[], **layered),
        "spark": lambda: spark_environment.environment_asset(stack, "Spark", code=None),
    }

    with pytest.raises((bundling.BundlingFailed, RuntimeError), match=r"(?i)hash"):
        synthesize[part]()


def test_a_lock_that_lacks_what_a_package_needs_is_refused(
    bundling, platform, wheels, lock_folder, tmp_path
):
    file = wheel(wheels, "tinything", requires=["other"])
    wheel(wheels, "other")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    lock = lock_folder / "requirements.txt"
    lock.write_text(f"tinything==1.0 --hash=sha256:{digest}\n", "utf-8")

    with pytest.raises(bundling.BundlingFailed, match="other"):
        bundling.install(lock, tmp_path / "asset", platform, locked=True)


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


def test_what_cannot_be_installed_is_reported_with_uvs_words(
    bundling, platform, wheels, user_folder, tmp_path
):
    requirements = user_folder / "requirements.txt"
    requirements.write_text("hugething==2.0\n", "utf-8")

    with pytest.raises(bundling.BundlingFailed) as refused:
        bundling.install(requirements, tmp_path / "asset", platform, locked=False)

    assert str(requirements) in str(refused.value)
    assert "for Python 3.14 on aarch64 (wheels only)" in str(refused.value)
    assert "hugething" in str(refused.value)


@pytest.fixture
def pips_index(tmp_path, monkeypatch):
    """An index of packages on this machine, which pip's configuration alone names."""
    (tmp_path / "index/tinything").mkdir(parents=True)
    wheel(tmp_path / "index/tinything", "tinything")
    page = f'<a href="{WHEEL}">{WHEEL}</a>'
    (tmp_path / "index/tinything/index.html").write_text(page, "utf-8")
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    handler = functools.partial(SimpleHTTPRequestHandler, directory=tmp_path / "index")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}/"
        (tmp_path / "pip.conf").write_text(f"[install]\nindex-url = {index}\n", "utf-8")
        yield index
        server.shutdown()


def test_packages_come_from_where_pip_takes_them(
    bundling, platform, pips_index, user_folder, tmp_path
):
    bundling.install(user_folder / "requirements.txt", tmp_path / "asset", platform, locked=False)

    assert (tmp_path / "asset/tinything.py").exists()


def test_what_uv_was_told_itself_stays_and_pips_variables_win_over_its_file(bundling, pips_index):
    told = bundling.uv_environment({**os.environ, "UV_INDEX_URL": "https://mine/"})
    assert "UV_DEFAULT_INDEX" not in told
    given = {"PIP_INDEX_URL": "https://its/", "PIP_CERT": "/a.pem", "PIP_FIND_LINKS": "/a /b"}
    untold = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    found = bundling.uv_environment(untold | given)
    assert found["UV_DEFAULT_INDEX"] == "https://its/"
    assert (found["SSL_CERT_FILE"], found["UV_FIND_LINKS"]) == ("/a.pem", "/a,/b")


def test_a_source_distribution_is_no_wheel(bundling, platform, wheels, user_folder, tmp_path):
    """What would have to be built would be built for this machine."""
    (wheels / "sourcy-1.0.tar.gz").write_bytes(b"")
    requirements = user_folder / "requirements.txt"
    requirements.write_text("sourcy==1.0\n", "utf-8")

    with pytest.raises(bundling.BundlingFailed, match=r"(?s)sourcy.*no usable wheels"):
        bundling.install(requirements, tmp_path / "asset", platform, locked=False)


def test_comments_and_blank_lines_are_no_requirements(bundling, user_folder):
    requirements = user_folder / "requirements.txt"
    requirements.write_text("\n# nothing\n  # here\n", "utf-8")
    assert bundling.requirement_lines(user_folder) == ()
    assert bundling.requirement_lines(user_folder / "__pycache__") == ()

    requirements.write_text("a==1 \\\n    --hash=sha256:00 # b\n  c @ file:///c.whl#d=e\n", "utf-8")
    assert bundling.requirement_lines(user_folder) == (
        "a==1 --hash=sha256:00",
        "c @ file:///c.whl#d=e",
    )


def test_what_may_be_another_package_tomorrow_is_named(bundling, user_folder):
    pinned = [
        *("a==1.0", "b[extra] == 2.0 ; python_version > '3'", "c @ https://c/c-1.whl"),
        *("d===1", "e==1.0 --hash=sha256:00"),
    ]
    loose = ["f", "g>=1", "h==1.*", "i==1,!=2", "-r other.txt", "-e .", "j>=1 --hash=sha256:00"]
    (user_folder / "requirements.txt").write_text("\n".join([*pinned, *loose]), "utf-8")

    assert bundling.unpinned(user_folder) == (*loose[:-1], "j>=1")


def test_a_fleet_and_a_pipeline_say_which_requirements_are_loose(user_folder, new_app):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415
    from aws_cdk.assertions import Annotations, Match  # noqa: PLC0415

    from shardfleet_cdk import (  # noqa: PLC0415
        HandlerCode,
        ShardFleet,
        SparkPipeline,
        TransformCode,
    )

    (user_folder / "requirements.txt").write_text("tinything\n", "utf-8")
    stack = Stack(new_app(), "Stack")
    stream = kinesis.Stream(stack, "Clicks")
    ShardFleet(stack, "Fleet", stream=stream, handler=HandlerCode(folder=user_folder))
    code = TransformCode(folder=user_folder, function="handler:handle")
    SparkPipeline(stack, "Pipeline", source=stream, code=code)

    words = Match.string_like_regexp("requirements.txt: tinything: not pinned")
    for construct in ("/Stack/Fleet/Worker", "/Stack/Pipeline"):
        Annotations.from_stack(stack).has_warning(construct, words)


@pytest.fixture
def synthesize(bundling, platform):
    """Synthesize a folder, bundled as a function, and return the asset's key in the template."""
    from aws_cdk import App, Stack  # noqa: PLC0415
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415

    def synthesize(folder, outdir, *, platform=platform, **context):
        app = App(outdir=str(outdir), context=context)
        code = bundling.package_code(folder, platform=platform, copy=True)
        lambda_.LayerVersion(Stack(app, "Stack"), "Layer", code=code)
        app.synth()
        template = json.loads((outdir / "Stack.template.json").read_text("utf-8"))
        return only(template, "AWS::Lambda::LayerVersion")["Content"]["S3Key"]

    return synthesize


def test_what_is_bundled_already_is_not_installed_again(
    bundling, synthesize, wheels, user_folder, tmp_path, monkeypatch
):
    first = synthesize(user_folder, tmp_path / "out")

    def not_again(*_, **__):
        message = "uv was asked again"
        raise AssertionError(message)

    monkeypatch.setattr(bundling, "install", not_again)
    assert synthesize(user_folder, tmp_path / "out") == first
    assert len(list((tmp_path / "out").rglob("tinything.py"))) == 1


@pytest.fixture
def key_of(synthesize, tmp_path):
    from shardfleet_cdk.synthesis import NO_BUNDLING  # noqa: PLC0415

    return lambda folder, **options: synthesize(folder, tmp_path / "out", **options, **NO_BUNDLING)


def test_the_key_follows_code_requirements_platform_and_byte_code_and_nothing_else(
    bundling, key_of, user_folder, monkeypatch
):
    from shardfleet_cdk.lambda_platform import Platform  # noqa: PLC0415

    monkeypatch.setattr(bundling, "interpreter", lambda _: None)
    first = key_of(user_folder)
    (user_folder / "__pycache__/other.cpython-311.pyc").write_bytes(b"newer")
    (user_folder / "requirements.txt").touch()
    assert key_of(user_folder) == first

    (user_folder / "handler.py").write_text("def handle(batch): return None\n", "utf-8")
    keys = [first, key_of(user_folder)]
    (user_folder / "requirements.txt").write_text("tinything==1.1\n", "utf-8")
    keys.append(key_of(user_folder))
    keys.append(key_of(user_folder, platform=Platform("3.13", "aarch64")))
    keys.append(key_of(user_folder, platform=Platform("3.14", "x86_64")))
    monkeypatch.setattr(bundling, "interpreter", lambda version: f"/usr/bin/python{version}")
    keys.append(key_of(user_folder))

    assert len(set(keys)) == len(keys)
