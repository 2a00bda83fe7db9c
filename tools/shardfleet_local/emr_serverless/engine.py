"""
EMR Serverless: applications and job runs of one account and region, on an injected clock.

Nothing happens by itself: each call first plays what was due up to now, in the order of its times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardfleet_local.emr_serverless.lives import (
    Application,
    ApplicationState,
    Delays,
    Job,
    Run,
    RunState,
    Work,
)
from shardfleet_local.emr_serverless.requests import (
    EmrServerlessError,
    check,
    conflict,
    invalid,
    not_found,
)

PAGE_MOST = 50  # fact R10
GRACE_LEAST_S = 15  # fact R15
GRACE_MOST_S = 1_800  # fact R15
INITIAL_EXECUTORS = 3  # fact R13

_HOLDS_WORKERS = (RunState.RUNNING, RunState.CANCELLING)
_ON_ITS_WAY = (RunState.PENDING, RunState.SCHEDULED, *_HOLDS_WORKERS)
_MAY_CHANGE = (ApplicationState.CREATED, ApplicationState.STOPPED)  # fact R02
_MAY_STOP = (ApplicationState.STARTING, ApplicationState.STARTED)  # fact R16
_TAKES_RUNS = (*_MAY_CHANGE, *_MAY_STOP)
_SHOWN_OF_RUN = ("name", "executionIamPolicy", "configurationOverrides", "tags", "retryPolicy")


class EmrServerless:
    """
    The service in one account and region.

    Args:
        clock: seconds since the epoch.
        job: what an attempt of a run does.
        delays: how long the service takes.
        account_id: 12 digits.
        region: of its ARNs.

    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        job: Job = lambda _: Work(),
        delays: Delays | None = None,
        account_id: str = "111122223333",
        region: str = "us-east-1",
    ) -> None:
        self.job = job
        self._clock = clock
        self._delays = delays or Delays()
        self._account = account_id
        self._arns = f"arn:aws:emr-serverless:{region}:{account_id}:"
        self._applications: dict[str, Application] = {}
        self._runs: dict[str, dict[str, Run]] = {}
        self._tokens: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._numbers = itertools.count(1)

    def call(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """
        Answer one request, with the model's names in it and in the answer; times are seconds.

        Raises:
            EmrServerlessError: it is refused.

        """
        operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "CreateApplication": self._create,
            "GetApplication": lambda asked: {"application": _told(self._application(asked))},
            "ListApplications": self._list_applications,
            "UpdateApplication": self._update,
            "StartApplication": self._start,
            "StopApplication": self._stop,
            "DeleteApplication": self._delete,
            "StartJobRun": self._start_run,
            "GetJobRun": lambda asked: {"jobRun": self._told_run(*self._run(asked))},
            "ListJobRuns": self._list_runs,
            "CancelJobRun": self._cancel,
        }
        if operation not in operations:
            raise invalid(f"{operation} is not part of this EMR Serverless")  # ours
        check(operation, request)
        self.play()
        return operations[operation](request)

    def play(self) -> None:
        """Let everything happen that was due by now."""
        now_s = self._clock()
        while True:
            found = min(self._due(), default=None, key=lambda due: due[:2])
            if found is None or found[0] > now_s:
                return
            at_s, _, each = found
            if isinstance(each, Run):
                self._move_run(each, at_s)
            else:
                self._move_application(each, at_s)

    def runs(self, application_id: str) -> list[Run]:
        """Return the runs of an application, the oldest first, as they are now."""
        self.play()
        return list(self._runs[application_id].values())

    def _due(self) -> Iterator[tuple[float, int, Application | Run]]:
        runs = (run for each in self._runs.values() for run in each.values())
        everything: Iterator[Application | Run] = itertools.chain(self._applications.values(), runs)
        for index, each in enumerate(everything):
            if each.due is not None:
                yield each.due[0], index, each

    # What happens

    def _move_application(self, application: Application, at_s: float) -> None:
        assert application.due is not None
        if application.due[1] is ApplicationState.STOPPING:
            self._begin_stop(application, at_s)
            return
        application.enter(application.due[1], at_s)
        self._look_at(application, at_s)

    def _begin_stop(self, application: Application, at_s: float) -> None:
        application.enter(ApplicationState.STOPPING, at_s)
        application.due = (at_s + self._delays.stop_s, ApplicationState.STOPPED)

    def _begin_start(self, application: Application, at_s: float) -> None:
        application.enter(ApplicationState.STARTING, at_s)
        application.due = (at_s + self._delays.start_s, ApplicationState.STARTED)

    def _look_at(self, application: Application, at_s: float) -> None:
        """Let runs go on that waited for the application or for each other; else it idles."""
        if application.state is not ApplicationState.STARTED:
            return
        runs = list(self._runs[application.application_id].values())
        for run in runs:
            if run.state in (RunState.SUBMITTED, RunState.QUEUED):
                on_their_way = sum(each.state in _ON_ITS_WAY for each in runs)
                if on_their_way < application.max_runs:
                    run.enter(RunState.PENDING, at_s)
                    run.due = (at_s + self._delays.schedule_s, RunState.SCHEDULED)
                elif run.state is RunState.SUBMITTED:
                    run.enter(RunState.QUEUED, at_s)
            elif run.state is RunState.SCHEDULED and run.due is None and self._has_room(run):
                run.due = (at_s + self._delays.schedule_s, RunState.RUNNING)
        application.due = None
        if all(run.state.ended for run in runs) and application.idle_s < float("inf"):
            idle_since_s = max([application.idle_since_s, *(run.ended_s or 0 for run in runs)])
            application.due = (idle_since_s + application.idle_s, ApplicationState.STOPPING)

    def _move_run(self, run: Run, at_s: float) -> None:
        assert run.due is not None
        state = run.due[1]
        if state is RunState.RUNNING:
            self._run_attempt(run, at_s)
        elif state is RunState.FAILED:
            self._fail(run, at_s)
        elif state is RunState.CANCELLING:  # Its time is over.
            self._begin_cancel(run, at_s, grace_s=0)
        else:
            run.enter(state, at_s)
        self._look_at(self._applications[run.request["applicationId"]], at_s)

    def _run_attempt(self, run: Run, at_s: float) -> None:
        if not self._has_room(run):
            run.enter(RunState.SCHEDULED, at_s, details="Waits for capacity")
            return
        run.enter(RunState.RUNNING, at_s)
        run.started_s = run.started_s or at_s
        run.workers = 1 + self._executors(run)
        run.work = self.job(run)
        end = RunState.SUCCESS if run.work.succeeds else RunState.FAILED
        run.due = (at_s + run.work.runs_s, end)
        if run.minutes_most:
            run.due = min(run.due, (run.started_s + 60 * run.minutes_most, RunState.CANCELLING))

    def _fail(self, run: Run, at_s: float) -> None:
        run.failures_s.append(at_s)
        if run.tries_again(at_s):
            run.attempt += 1
            run.enter(RunState.SCHEDULED, at_s, details="Begins another attempt")
            run.workers = 0
        else:
            run.enter(RunState.FAILED, at_s, details="Job failed")

    def _begin_cancel(self, run: Run, at_s: float, *, grace_s: float) -> None:
        takes_s = min(grace_s, run.work.stops_s) if run.work and run.workers else 0.0
        run.enter(RunState.CANCELLING, at_s)
        run.due = (at_s + takes_s, RunState.CANCELLED)

    def _used(self, application_id: str, without: Run) -> tuple[float, float]:
        cpu = memory = 0.0
        for run in self._runs[application_id].values():
            if run is not without and run.workers:
                sizes = [run.worker_size("driver")]
                sizes += [run.worker_size("executor")] * (run.workers - 1)
                cpu, memory = cpu + sum(s[0] for s in sizes), memory + sum(s[1] for s in sizes)
        return cpu, memory

    def _free(self, run: Run) -> tuple[float, float]:
        """Return the vCPU and GB that are left beside a run's driver; negative: it has no room."""
        application = self._applications[run.request["applicationId"]]
        most, used = application.capacity(), self._used(application.application_id, run)
        driver = run.worker_size("driver")
        return most[0] - used[0] - driver[0], most[1] - used[1] - driver[1]

    def _has_room(self, run: Run) -> bool:
        return min(self._free(run)) >= 0  # fact R03

    def _executors(self, run: Run) -> int:
        """Return how many of the executors that it begins with there is room for (fact R03)."""
        asked = int(run.conf.get("spark.dynamicAllocation.initialExecutors", INITIAL_EXECUTORS))
        size = run.worker_size("executor")
        fit = (room / each for room, each in zip(self._free(run), size, strict=True))
        return int(min(asked, *fit))

    # What is asked

    def _create(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        known = _once(self._tokens, asked)
        if known is None:
            now_s = self._clock()
            known = f"00f{next(self._numbers):013d}"
            application = Application(
                application_id=known,
                arn=f"{self._arns}/applications/{known}",
                request=dict(asked),
                state=ApplicationState.CREATING,
                created_s=now_s,
                updated_s=now_s,
                idle_since_s=now_s,
                due=(now_s + self._delays.create_s, ApplicationState.CREATED),
            )
            self._applications[known], self._runs[known] = application, {}
            self._tokens[asked["clientToken"]] = (dict(asked), known)
        made = self._applications[known]
        names = {"name": made.request["name"]} if "name" in made.request else {}
        return {"applicationId": known, "arn": made.arn, **names}

    def _list_applications(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        states = asked.get("states")
        found = [
            _told_briefly(each)
            for each in self._applications.values()
            if not states or each.state in states
        ]
        return _page("applications", found, asked)

    def _update(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        application = self._changeable(asked)
        changes = {k: v for k, v in asked.items() if k not in ("applicationId", "clientToken")}
        application.request.update(changes)
        application.updated_s = self._clock()
        return {"application": _told(application)}

    def _start(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        application = self._application(asked)
        if application.state in _MAY_CHANGE:
            self._begin_start(application, self._clock())
        elif application.state not in _MAY_STOP:
            raise _wrong_state(application, (*_MAY_CHANGE, *_MAY_STOP))  # fact R16
        return {}

    def _stop(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        application = self._application(asked)
        if application.state not in _MAY_STOP:
            allowed = ", ".join(_MAY_STOP)
            raise invalid(  # fact R16
                "Application cannot be STOPPED. Applications must be in one of the following "
                f"statuses: [{allowed}]"
            )
        runs = self._runs[application.application_id].values()
        if not all(run.state.ended for run in runs):
            raise invalid(  # fact R02
                "Application cannot be STOPPED. All scheduled and running jobs must be completed "
                "or cancelled before."
            )
        self._begin_stop(application, self._clock())
        return {}

    def _delete(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self._changeable(asked).enter(ApplicationState.TERMINATED, self._clock())
        return {}

    def _start_run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        application = self._application(asked)
        runs = self._runs[application.application_id]
        known = _once(application.tokens, asked)
        if known is None:
            self._admit(application)
            now_s = self._clock()
            known = f"00r{next(self._numbers):013d}"
            runs[known] = Run(
                run_id=known,
                arn=f"{application.arn}/jobruns/{known}",
                request=dict(asked),
                release_label=application.request["releaseLabel"],
                state=RunState.SUBMITTED,
                created_s=now_s,
                updated_s=now_s,
            )
            application.tokens[asked["clientToken"]] = (dict(asked), known)
            self._look_at(application, now_s)
        return {
            "applicationId": application.application_id,
            "jobRunId": known,
            "arn": runs[known].arn,
        }

    def _admit(self, application: Application) -> None:
        if application.state not in _TAKES_RUNS:
            raise _wrong_state(application, _TAKES_RUNS)  # fact R16
        if application.state in _MAY_CHANGE:
            if not application.starts_itself:
                raise _wrong_state(application, _MAY_STOP)  # fact R14
            self._begin_start(application, self._clock())
        elif application.due and application.due[1] is ApplicationState.STOPPING:
            application.due = None

    def _list_runs(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        application = self._application(asked)
        after = asked.get("createdAtAfter", float("-inf"))
        before = asked.get("createdAtBefore", float("inf"))
        found = [
            self._summary(application, run)
            for run in reversed(self._runs[application.application_id].values())
            if (not asked.get("states") or run.state in asked["states"])
            and asked.get("mode", run.mode) == run.mode
            and after <= run.created_s <= before
        ]
        return _page("jobRuns", found, asked)

    def _cancel(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        application, run = self._run(asked)
        grace_s = int(asked.get("shutdownGracePeriodInSeconds", 0))
        if grace_s and not GRACE_LEAST_S <= grace_s <= GRACE_MOST_S:
            raise invalid(  # fact R15
                f"shutdownGracePeriodInSeconds: 0 or {GRACE_LEAST_S} to {GRACE_MOST_S}"
            )
        if run.state.ended:
            raise invalid(f"Job run {run.run_id} is {run.state}")  # ours: it might be silent
        if run.state is not RunState.CANCELLING:
            self._begin_cancel(run, self._clock(), grace_s=grace_s)
            self.play()
        return {"applicationId": application.application_id, "jobRunId": run.run_id}

    def _application(self, asked: Mapping[str, Any]) -> Application:
        found = self._applications.get(asked["applicationId"])
        if found is None:
            raise not_found(f"Application {asked['applicationId']} does not exist")  # fact R11
        return found

    def _changeable(self, asked: Mapping[str, Any]) -> Application:
        application = self._application(asked)
        if application.state not in _MAY_CHANGE:
            raise _wrong_state(application, _MAY_CHANGE)  # fact R02
        return application

    def _run(self, asked: Mapping[str, Any]) -> tuple[Application, Run]:
        application = self._application(asked)
        found = self._runs[application.application_id].get(asked["jobRunId"])
        if found is None:
            raise not_found(f"Job run {asked['jobRunId']} does not exist")  # fact R11
        return application, found

    # What is told

    def _summary(self, application: Application, run: Run) -> dict[str, Any]:
        return {
            "applicationId": application.application_id,
            "id": run.run_id,
            "arn": run.arn,
            "createdBy": f"arn:aws:iam::{self._account}:root",
            "createdAt": run.created_s,
            "updatedAt": run.updated_s,
            "executionRole": run.request["executionRoleArn"],
            "mode": run.mode,
            "state": run.state.value,
            "stateDetails": run.details,
            "releaseLabel": run.release_label,
            "type": application.request["type"],
            "attempt": run.attempt,
            **({"name": run.request["name"]} if "name" in run.request else {}),
        }

    def _told_run(self, application: Application, run: Run) -> dict[str, Any]:
        summary = self._summary(application, run)
        ended_s = run.ended_s if run.ended_s is not None else self._clock()
        times = {"startedAt": run.started_s, "endedAt": run.ended_s}
        return {
            **{k: v for k, v in summary.items() if k not in ("id", "type")},
            **{name: run.request[name] for name in _SHOWN_OF_RUN if name in run.request},
            **{name: at_s for name, at_s in times.items() if at_s is not None},
            "jobRunId": run.run_id,
            "jobDriver": run.request.get("jobDriver", {}),
            "executionTimeoutMinutes": run.minutes_most,
            "totalExecutionDurationSeconds": int(ended_s - (run.started_s or ended_s)),
        }


def _once(tokens: Mapping[str, tuple[Mapping[str, Any], str]], asked: Mapping[str, Any]) -> Any:
    """Return what a client token has made before, or None; refuse another request under it."""
    before = tokens.get(asked["clientToken"])
    if before is None:
        return None
    if before[0] != asked:
        raise conflict(
            f"Client token {asked['clientToken']} was used with another request"
        )  # fact R11
    return before[1]


def _wrong_state(
    application: Application, allowed: tuple[ApplicationState, ...]
) -> EmrServerlessError:
    return invalid(  # fact R02
        f"Application {application.application_id} must be in of the following statuses "
        f"[{', '.join(allowed)}]. Current status: {application.state}"
    )


def _told_briefly(application: Application) -> dict[str, Any]:
    shown = ("name", "releaseLabel", "type", "architecture")
    return {
        "id": application.application_id,
        "arn": application.arn,
        "state": application.state.value,
        "createdAt": application.created_s,
        "updatedAt": application.updated_s,
        **{name: application.request[name] for name in shown if name in application.request},
    }


def _told(application: Application) -> dict[str, Any]:
    brief = _told_briefly(application)
    hidden = ("clientToken", "id")
    told = {k: v for k, v in {**application.request, **brief}.items() if k not in hidden}
    defaults = {
        "autoStartConfiguration": {"enabled": True},
        "autoStopConfiguration": {"enabled": True, "idleTimeoutMinutes": 15},  # fact R14
        "architecture": "X86_64",
    }
    return {**defaults, **told, "applicationId": application.application_id}


def _page(name: str, found: list[dict[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
    first, size = int(asked.get("nextToken", "0")), int(asked.get("maxResults", PAGE_MOST))
    page: dict[str, Any] = {name: found[first : first + size]}
    if first + size < len(found):
        page["nextToken"] = str(first + size)
    return page
