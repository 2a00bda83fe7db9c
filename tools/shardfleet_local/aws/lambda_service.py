"""
Lambda in the embedded AWS: our sandboxes in ministack's pool, and its gaps closed.

Gaps closed here (design page on emulators, section 9): the real exception class as error type,
processes frozen between invocations, logs delivered as they are written, metrics for invocations
that come from Step Functions and schedules, reserved concurrency and asynchronous settings that
also hold when a function is invoked through an alias.
"""

import contextlib
import dataclasses
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ministack.core import lambda_runtime
from ministack.core.responses import request_scope
from ministack.services import cloudwatch, lambda_svc

from shardfleet_local.aws import lambda_environment
from shardfleet_local.aws.lambda_logs import SandboxLog
from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.sandbox import FunctionCall, FunctionSandbox, Launch, ProcessGroup, Reply
from shardfleet_local.aws.settings import ServerSettings


class PooledSandbox:
    """
    A sandbox as ministack's pool of workers wants it.

    The pool leases, keeps, reaps and kills it through the attributes `in_use`, `last_used`,
    `config` and `_proc` (names of `lambda_runtime.Worker`).
    """

    settings: ServerSettings
    extra_environment: Mapping[str, str]

    def __init__(self, func_name: str, config: Mapping[str, Any], code_zip: bytes) -> None:
        self.func_name = func_name
        self.config = config
        self.in_use = False
        self.last_used = time.time()
        self._lock = threading.Lock()
        self._code = code_zip
        self._scratch: Path | None = None
        self._sandbox: FunctionSandbox | None = None
        self._log: SandboxLog | None = None

    @property
    def _proc(self) -> ProcessGroup | None:
        return self._sandbox.process if self._sandbox else None

    @_proc.setter
    def _proc(self, process: ProcessGroup | None) -> None:
        if self._sandbox:
            self._sandbox.process = process

    @property
    def frozen(self) -> bool:
        """Whether its process is stopped between invocations."""
        return self._sandbox is not None and self._sandbox.frozen

    def invoke(self, invocation: FunctionCall) -> tuple[Reply, str]:
        """Run one invocation and return the reply and what it logged."""
        with self._lock:
            if self._sandbox is None or self._log is None or not self._sandbox.alive:
                self._sandbox, self._log = self._prepare()
            self._log.begin(invocation.request_id)
            started = time.monotonic()
            reply = self._sandbox.invoke(invocation)
            duration_ms = (time.monotonic() - started) * 1000
            tail = self._log.tail()
            self._log.end(
                invocation.request_id,
                duration_ms=duration_ms,
                memory_mb=str(self.config.get("MemorySize", 128)),
            )
            self.last_used = time.time()
            return reply, tail

    def _prepare(self) -> tuple[FunctionSandbox, SandboxLog]:
        """Unpack what the function consists of and compose its process's environment."""
        self._discard_tmpdir()
        account_id, region = lambda_runtime._account_region_from_function_config(self.config)
        log = SandboxLog(self.config, account_id=account_id, region=region)
        store = self.settings.folder / "assets"
        code = lambda_environment.unpack_code(self._code, store)
        with request_scope(account_id, region):
            archives = [
                lambda_svc._resolve_layer_zip(layer) for layer in self.config.get("Layers") or []
            ]
            credentials = lambda_runtime.execution_credentials(self.config)
        layers = [lambda_environment.unpack_layer(each, store) for each in archives if each]
        self._scratch = Path(tempfile.mkdtemp(prefix="sandbox-", dir=self.settings.folder))
        service = {
            **credentials,
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_ENDPOINT_URL": self.settings.endpoint_url,
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{self.config.get('Runtime', '')}",
            "AWS_LAMBDA_FUNCTION_NAME": self.func_name,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(self.config.get("MemorySize", 128)),
            "AWS_LAMBDA_FUNCTION_VERSION": log.version,
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": log.group,
            "AWS_LAMBDA_LOG_STREAM_NAME": log.stream,
            "LAMBDA_TASK_ROOT": str(code),
            "HOME": str(self._scratch),
            "TMPDIR": str(self._scratch),
        }
        environment = lambda_environment.process_environment(
            self.config, service=service, extra=self.extra_environment
        )
        launch = Launch(
            handler=str(self.config.get("Handler", "index.handler")),
            folder=code,
            environment=environment,
            search_path=lambda_environment.search_path(code, layers),
            memory_mb=int(self.config.get("MemorySize", 128)),
        )
        return FunctionSandbox(launch, log, self.settings.behaviour), log

    def _discard_tmpdir(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def execute(func: Mapping[str, Any], event: Any, request_id: str) -> dict[str, Any]:
    """Invoke a Python function in a sandbox of the pool; the result is in ministack's shape."""
    config = func.get("config") or func
    name = str(config.get("FunctionName", "unknown"))
    lambda_svc._ensure_reaper_thread()
    started = time.monotonic()
    with _leased_sandbox(name, config, func["code_zip"]) as sandbox:
        try:
            reply, log = sandbox.invoke(
                FunctionCall(
                    event=event,
                    request_id=request_id,
                    function_arn=str(config.get("FunctionArn", "")),
                    timeout_s=float(config.get("Timeout", 3)),
                    variables={
                        "_X_AMZN_TRACE_ID": lambda_svc._xray_trace_id_for_invocation(config)
                    },
                )
            )
        except (lambda_environment.UnpackFailed, OSError) as error:
            payload = {"errorType": "Runtime.InvalidEntrypoint", "errorMessage": str(error)}
            reply, log = Reply(error=payload), str(error)
    failed = reply.error is not None
    _record_invocation(config, (time.monotonic() - started) * 1000, failed=failed)
    if failed:
        return {"body": reply.error, "error": True, "log": log}
    return {"body": json.loads(reply.result or "null"), "log": log}


@contextlib.contextmanager
def _leased_sandbox(name: str, config: Mapping[str, Any], code: bytes) -> Iterator[PooledSandbox]:
    sandbox, _ = lambda_runtime.acquire_worker(
        name, config, code, qualifier=config.get("Version", "$LATEST")
    )
    try:
        yield sandbox
    finally:
        lambda_runtime.release_worker(sandbox)


def _record_invocation(config: Mapping[str, Any], duration_ms: float, *, failed: bool) -> None:
    """Record Lambda's metrics, by function and by function and invoked resource."""
    name = str(config.get("FunctionName", "unknown"))
    qualified = str(config.get("FunctionArn", "")).partition(":function:")[2]
    for dimensions in ({"FunctionName": name}, {"FunctionName": name, "Resource": qualified}):
        for metric, value, unit in (
            ("Invocations", 1, "Count"),
            ("Errors", int(failed), "Count"),
            ("Duration", duration_ms, "Milliseconds"),
        ):
            cloudwatch.record_metric("AWS/Lambda", metric, value, unit, dimensions)


def worker_processes(function_name: str | None = None) -> list[dict[str, Any]]:
    """List the live sandbox processes: pid, function, version, whether busy or frozen."""
    with lambda_runtime._lock:
        pooled = [each for entries in lambda_runtime._workers.values() for each in entries]
    return [
        {
            "pid": worker._proc.pid,
            "function_name": worker.func_name,
            "version": str(worker.config.get("Version", "$LATEST")),
            "busy": worker.in_use,
            "frozen": worker.frozen,
        }
        for worker in pooled
        if isinstance(worker, PooledSandbox)
        and function_name in (None, worker.func_name)
        and worker._proc is not None
        and worker._proc.poll() is None
    ]


def kill_all() -> None:
    """Kill every Lambda process, busy or frozen."""
    lambda_runtime.reset()


def _use_sandboxes(settings: ServerSettings) -> None:
    stock_class_for = lambda_runtime._worker_class_for
    stock_execute = lambda_svc._execute_function_warm
    stock_logs = lambda_svc._emit_lambda_logs
    PooledSandbox.settings = settings
    PooledSandbox.extra_environment = dict(settings.lambda_environment)

    def class_for(config: Mapping[str, Any]) -> Any:
        return PooledSandbox if _is_ours(config) else stock_class_for(config)

    def execute_warm(func: Mapping[str, Any], event: Any, request_id: str) -> Any:
        config = func.get("config") or func
        if _is_ours(config) and func.get("code_zip"):
            return execute(func, event, request_id)
        return stock_execute(func, event, request_id)

    def emit_logs(func: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        if not _is_ours(func.get("config") or func):  # Ours are written as they appear.
            stock_logs(func, *arguments, **options)

    lambda_runtime._worker_class_for = class_for
    lambda_svc._execute_function_warm = execute_warm
    lambda_svc._emit_lambda_logs = emit_logs


def _is_ours(config: Mapping[str, Any]) -> bool:
    return str(config.get("Runtime", "")).startswith("python")


def _count_throttles_once(_: ServerSettings) -> None:
    stock = lambda_svc._emit_lambda_metrics

    def emit(name: str, duration_ms: float, *, error: bool, throttle: bool) -> None:
        if throttle and not duration_ms:  # The other callers repeat what `execute` has recorded.
            stock(name, duration_ms, error=error, throttle=throttle)

    lambda_svc._emit_lambda_metrics = emit


def _keep_the_alias(_: ServerSettings) -> None:
    """Let the context name the alias that was invoked, as Lambda does."""
    stock = lambda_svc._get_func_record_for_ref

    def record_for(reference: str) -> tuple[Any, Any, str]:
        record, config, name = stock(reference)
        _, qualifier = lambda_svc._resolve_name_and_qualifier(reference)
        base = lambda_svc._functions.get(name)
        if config and base and qualifier in base.get("aliases", {}):
            arn = f"{base['config']['FunctionArn']}:{qualifier}"
            config = {**config, "FunctionArn": arn}
        return record, config, name

    lambda_svc._get_func_record_for_ref = record_for


def _share_reserved_concurrency(_: ServerSettings) -> None:
    stock = lambda_svc._reserved_concurrency

    def reserved(func: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
        base = lambda_svc._functions.get(config.get("FunctionName"))
        found: int | None = stock(base or func, config)
        return found

    lambda_svc._reserved_concurrency = reserved


def _apply_asynchronous_settings(settings: ServerSettings) -> None:
    """Honour the EventInvokeConfig of the alias through which a function is invoked."""
    stock = lambda_svc.invoke_async_with_retry

    def invoke(func: dict[str, Any], event: Any) -> None:
        config = func.get("config") or func
        base = lambda_svc._functions.get(config.get("FunctionName"))
        _, qualifier = lambda_svc._resolve_name_and_qualifier(str(config.get("FunctionArn", "")))
        found = base and lambda_svc._event_invoke_config(base, qualifier)
        for _ in range(settings.behaviour.event_deliveries):
            stock({**func, "event_invoke_config": found} if found else func, event)

    lambda_svc.invoke_async_with_retry = invoke


def replace_environment(variables: Mapping[str, str]) -> None:
    """Change what is injected into Lambda processes that start from now on."""
    PooledSandbox.extra_environment = dict(variables)
    PooledSandbox.settings = dataclasses.replace(
        PooledSandbox.settings, lambda_environment=dict(variables)
    )


_RUNTIME = "ministack.core.lambda_runtime:"
_SERVICE = "ministack.services.lambda_svc:"

PATCHES = (
    Patch(
        gap="Handler errors are all Runtime.HandlerError, processes are never frozen, a dead one "
        "is noticed late, logs arrive when the invocation has ended",
        touches=(
            *(
                _RUNTIME + name
                for name in (
                    "_worker_class_for", "_workers", "_lock", "acquire_worker", "release_worker",
                    "reset", "kill_workers", "execution_credentials",
                    "_account_region_from_function_config",
                )
            ),
            *(
                _SERVICE + name
                for name in (
                    "_execute_function_warm", "_emit_lambda_logs", "_ensure_reaper_thread",
                    "_resolve_layer_zip", "_xray_trace_id_for_invocation",
                )
            ),
            "ministack.services.cloudwatch:record_metric",
            "ministack.services.cloudwatch_logs:_append_log_events",
            "ministack.services.cloudwatch_logs:_fanout_to_subscription_filters",
            "ministack.services.cloudwatch_logs:_log_groups",
            "ministack.services.cloudwatch_logs:_make_group_arn",
            "ministack.core.responses:request_scope",
        ),
        apply=_use_sandboxes,
    ),
    Patch(
        gap="Only invocations over HTTP are counted in AWS/Lambda metrics",
        touches=(_SERVICE + "_emit_lambda_metrics",),
        apply=_count_throttles_once,
    ),
    Patch(
        gap="A function invoked through an alias by Step Functions sees the version's ARN",
        touches=(
            _SERVICE + "_get_func_record_for_ref",
            _SERVICE + "_resolve_name_and_qualifier",
            _SERVICE + "_functions",
        ),
        apply=_keep_the_alias,
    ),
    Patch(
        gap="Reserved concurrency is ignored when a version or an alias is invoked",
        touches=(_SERVICE + "_reserved_concurrency",),
        apply=_share_reserved_concurrency,
    ),
    Patch(
        gap="The asynchronous settings of an alias are ignored",
        touches=(_SERVICE + "invoke_async_with_retry", _SERVICE + "_event_invoke_config"),
        apply=_apply_asynchronous_settings,
    ),
)  # fmt: skip
"""What this module corrects in ministack."""
