"""
A small interpreter of the states language, enough to run the worker slot's definition.

Expressions are evaluated by a JSONata implementation; the tasks' answers are scripted, and waits
take no time.
"""

import re
from datetime import UTC, datetime, timedelta

import jsonata

# Step Functions guide, "Handling errors in Step Functions workflows" (fact S01).
NOT_AMONG_ALL = ("States.DataLimitExceeded", "States.Runtime")


class TaskFailed(Exception):
    """What a scripted task raises: the error's name and cause, how long the task had run."""

    def __init__(self, name, *, after_s=0, cause=None):
        super().__init__(name)
        self.output = {"Error": name} | ({"Cause": cause} if cause else {})
        self.name = name
        self.after_s = after_s


class Machine:
    """Runs a definition; `invoke` and `start` answer the two tasks, `waits` lists the delays."""

    def __init__(self, definition, *, invoke, start):
        self.definition = definition
        self.tasks = {"lambda:invoke": invoke, "states:startExecution": start}
        self.waits = []
        self.visited = []
        self.ran_s = 0
        self.error_output = None

    def run(self, given):
        self.variables = {}
        self.input = given
        name = self.definition["StartAt"]
        while name:
            self.visited.append(name)
            assert len(self.visited) < 10_000, "the machine does not end"
            name = self._step(self.definition["States"][name])
        return self

    def _step(self, state):
        match state["Type"]:
            case "Task":
                return self._task(state)
            case "Choice":
                for rule in state["Choices"]:
                    if self._value(rule["Condition"]):
                        self._assign(rule)
                        return rule["Next"]
                self._assign(state)
                return state["Default"]
            case "Wait":
                self.waits.append(self._value(state["Seconds"]))
        self._assign(state)
        return state.get("Next")

    def _task(self, state):
        call = self.tasks[state["Resource"].rpartition(":::")[2]]
        retried = {name: r["MaxAttempts"] for r in state["Retry"] for name in r["ErrorEquals"]}
        attempts = 0
        while True:
            try:
                result = call(self._value(state["Arguments"]))
            except TaskFailed as error:
                attempts += 1
                everything = set() if error.name in NOT_AMONG_ALL else {"States.ALL"}
                all_retries = retried.get("States.ALL", 0) if everything else 0
                if attempts <= retried.get(error.name, all_retries):
                    continue
                self.ran_s, self.error_output = error.after_s, error.output
                for rule in state["Catch"]:
                    if ({error.name} | everything) & set(rule["ErrorEquals"]):
                        self._assign(rule)
                        return rule["Next"]
                raise
            self._assign(state, result)
            return state["Next"]

    def _assign(self, state, result=None):
        assigned = state.get("Assign", {})
        self.variables |= {name: self._value(value, result) for name, value in assigned.items()}

    def _value(self, value, result=None):
        if isinstance(value, dict):
            return {name: self._value(v, result) for name, v in value.items()}
        if not isinstance(value, str) or not (text := re.fullmatch(r"{%(.*)%}", value)):
            return value
        expression = jsonata.Jsonata(text[1])
        frame = expression.create_frame()
        entered = datetime.now(UTC) - timedelta(seconds=self.ran_s)
        context = {
            "StateMachine": {"Id": "arn:machine"},
            "State": {
                "EnteredTime": f"{entered:%Y-%m-%dT%H:%M:%S}.{entered.microsecond // 1000:03}Z"
            },
        }
        states = {"input": self.input, "result": result, "context": context}
        if self.error_output:
            states["errorOutput"] = self.error_output
        frame.bind("states", states)
        for name, bound in self.variables.items():
            frame.bind(name, bound)
        found = expression.evaluate(None, frame)
        assert found is not None, f"{value} is undefined, which fails a state"
        return found
