"""What a fleet's functions run on: Lambda's Python and processor, as the fleet chooses them."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import aws_lambda as lambda_

from shardfleet.errors import ConfigurationError

# Those on Amazon Linux 2023, whose glibc (2.34) loads the wheels of `Platform.wheels`; Python 3.11
# runs on Amazon Linux 2, whose glibc (2.26) does not
# (https://docs.aws.amazon.com/lambda/latest/dg/lambda-python.html).
RUNTIMES = ("python3.12", "python3.13", "python3.14")
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}


@dataclass(frozen=True, slots=True)
class Platform:
    """
    A Python and a processor, for which packages are chosen.

    Attributes:
        python_version: e.g. ``"3.14"``.
        machine: the wheel tags' name of the processor: ``aarch64`` or ``x86_64``.

    """

    python_version: str
    machine: str

    @property
    def wheels(self) -> str:
        """Return uv's name of the wheels' target."""
        return f"{self.machine}-manylinux_2_28"


@dataclass(frozen=True, slots=True)
class LambdaPlatform:
    """
    The same as Lambda names it.

    Attributes:
        runtime: one of :data:`RUNTIMES`.
        architecture: arm64 or x86_64.

    Raises:
        ConfigurationError: another runtime.

    """

    runtime: lambda_.Runtime
    architecture: lambda_.Architecture

    def __post_init__(self) -> None:
        """Refuse what the library or its packages do not run on."""
        if self.runtime.name not in RUNTIMES:
            raise ConfigurationError(
                f"runtime {self.runtime.name}: one of {', '.join(RUNTIMES)} allowed"
            )

    @property
    def packages(self) -> Platform:
        """Return what packages are chosen for."""
        version = self.runtime.name.removeprefix("python")
        return Platform(version, MACHINES[self.architecture.name])


def lambda_platform(
    runtime: lambda_.Runtime | None = None, architecture: lambda_.Architecture | None = None
) -> LambdaPlatform:
    """
    Return a fleet's platform; by default the newest Python on the cheaper processor.

    Raises:
        ConfigurationError: the runtime is none of :data:`RUNTIMES`.

    """
    return LambdaPlatform(
        runtime or lambda_.Runtime.PYTHON_3_14, architecture or lambda_.Architecture.ARM_64
    )
