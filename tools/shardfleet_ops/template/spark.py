"""Spark jobs that a template's state machines start on EMR Serverless."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardfleet_ops.template.limits import INITIAL_EXECUTORS, WORKER_CPU, WORKER_MEMORY_GB
from shardfleet_ops.template.machines import MACHINE, arguments_of, states_of
from shardfleet_ops.template.reading import (
    Template,
    TemplateFault,
    TemplateResource,
    least_length,
    literal,
    spelled,
)

TOKEN_MOST = 64  # StartJobRun.clientToken.
PARAMETERS_MOST, ARGUMENTS_MOST = 102_400, 1_024  # SparkSubmit.
_TOKEN = re.compile(r"[A-Za-z0-9._-]+")
_CONF = re.compile(r"--conf\s+\"?([^\s=]+)=([^\s\"]+)")
_TENTHS = 10  # Spark asks for a tenth beside the memory of a driver or executor.


def _jobs(template: Template) -> Iterator[tuple[TemplateResource, Mapping[str, Any]]]:
    for machine in template.resources(MACHINE):
        for _, state in states_of(machine):
            task, arguments = str(state.get("Resource", "")), arguments_of(state)
            if task.endswith(":emrserverless:startJobRun"):
                yield machine, arguments
            payload = arguments.get("Payload")
            # A function of ours starts it with a token of its own.
            if isinstance(payload, dict) and isinstance(payload.get("StartJobRun"), dict):
                yield machine, payload["StartJobRun"]


def _submitted(job: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (job.get("JobDriver") or {}).get("SparkSubmit")
    return found if isinstance(found, dict) else {}


def _conf(job: Mapping[str, Any]) -> dict[str, str]:
    return dict(_CONF.findall(spelled(_submitted(job).get("SparkSubmitParameters", ""))))


def wrong_tokens(template: Template) -> Iterator[TemplateFault]:
    """R06: a run's client token is shorter than an execution's name may be."""
    for machine, job in _jobs(template):
        token = str(job.get("ClientToken", ""))
        whole = re.fullmatch(r"\{%\s*\$states\.context\.Execution\.(Name|Id)\s*%\}", token)
        text = literal(token)
        written = text is not None and not text.startswith("{%")
        if whole or (written and token and not _fits(token)):
            yield TemplateFault(
                certain=True,
                fact="R06",
                where=machine.path,
                found="the client token of the run is "
                + (f"the execution's {whole[1].lower()}" if whole else repr(token)),
                allowed=f"1 to {TOKEN_MOST} of A-Z, a-z, 0-9, ., _ and -; an execution's name may "
                "have 80",
                remedy="hash it: $hash(…, 'SHA-256') has 64 characters",
            )


def _fits(token: str) -> bool:
    return len(token) <= TOKEN_MOST and bool(_TOKEN.fullmatch(token))


def long_submits(template: Template) -> Iterator[TemplateFault]:
    """R10: what a job is started with has a length."""
    for machine, job in _jobs(template):
        submitted = _submitted(job)
        length = least_length(submitted.get("SparkSubmitParameters", ""))
        count = len(submitted.get("EntryPointArguments") or ())
        if length > PARAMETERS_MOST or count > ARGUMENTS_MOST:
            yield TemplateFault(
                certain=True,
                fact="R10",
                where=machine.path,
                found=f"{length:,} characters of parameters, {count} arguments",
                allowed=f"{PARAMETERS_MOST:,} characters, {ARGUMENTS_MOST} arguments",
                remedy="put settings into a file that the job reads",
            )


def too_few_executors(template: Template) -> Iterator[TemplateFault]:
    """A1: a job begins with as many executors as it says, else with 3: no more are allowed."""
    for machine, job in _jobs(template):
        conf = _conf(job)
        most = conf.get("spark.dynamicAllocation.maxExecutors", "")
        first = int(conf.get("spark.dynamicAllocation.initialExecutors", INITIAL_EXECUTORS))
        if most.isdigit() and int(most) < first:
            yield TemplateFault(
                certain=True,
                fact="A1",
                where=machine.path,
                found=f"the job may have {most} executors and begins with {first}",
                allowed="spark.dynamicAllocation.maxExecutors of initialExecutors or more, which "
                f"is {INITIAL_EXECUTORS} unless it is said",
                remedy="allow more executors, or say initialExecutors",
            )


def small_applications(template: Template) -> Iterator[TemplateFault]:
    """R03: an application's capacity holds a driver and the executors that a job begins with."""
    for machine, job in _jobs(template):
        application = template.referenced(job.get("ApplicationId"))
        capacity = application.properties.get("MaximumCapacity") if application else None
        if not isinstance(capacity, dict):
            continue
        conf = _conf(job)
        first = int(conf.get("spark.dynamicAllocation.initialExecutors", INITIAL_EXECUTORS))
        driver, executor = worker_size(conf, "driver"), worker_size(conf, "executor")
        cpu, memory = (one + first * each for one, each in zip(driver, executor, strict=True))
        has = [_leading(capacity.get(part)) for part in ("Cpu", "Memory")]
        if (has[0] and has[0] < cpu) or (has[1] and has[1] < memory):
            yield TemplateFault(
                certain=True,
                fact="R03",
                where=machine.path,
                found=f"a driver and {first} executors need {cpu} vCPU and {memory} GB, the "
                f"application may have {capacity.get('Cpu')} and {capacity.get('Memory')}",
                allowed="a capacity that holds the driver and the executors that a job begins with",
                remedy="raise the capacity, or begin with fewer or smaller executors",
            )


def worker_size(conf: Mapping[str, str], role: str) -> tuple[int, int]:
    """Return vCPU and GB of a ``driver`` or an ``executor`` by Spark's settings."""
    return _cores(conf, role), _gigabytes(conf, role)


def _cores(conf: Mapping[str, str], role: str) -> int:
    said = conf.get(f"spark.{role}.cores", "")
    return int(said) if said.isdigit() else WORKER_CPU


def _gigabytes(conf: Mapping[str, str], role: str) -> int:
    said = re.fullmatch(r"(\d+)([gm])b?", conf.get(f"spark.{role}.memory", "").lower())
    if not said:
        return WORKER_MEMORY_GB
    tenths = int(said[1]) * (_TENTHS + 1) * (1024 if said[2] == "g" else 1)
    return -(-tenths // (_TENTHS * 1024))


def _leading(text: object) -> float:
    found = re.match(r"\s*(\d+)", str(text or ""))
    return float(found[1]) if found else 0.0
