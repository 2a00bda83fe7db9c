"""Lambda functions of a template, and who calls them."""

from __future__ import annotations

from collections.abc import Iterator

from shardfleet_ops.template.limits import (
    CONCURRENCY_BY_DEFAULT,
    CONCURRENCY_LEFT_LEAST,
    CONCURRENCY_OF_A_NEW_ACCOUNT,
    ENVIRONMENT_BYTES_MOST,
    RESERVED_VARIABLES,
)
from shardfleet_ops.template.reading import (
    Template,
    TemplateFault,
    least_length,
    number,
    variables_of,
)

_FUNCTION = "AWS::Lambda::Function"


def reserved_variables(template: Template) -> Iterator[TemplateFault]:
    """A6: a function may not set variables that are Lambda's own."""
    for function in template.resources(_FUNCTION):
        names = sorted(RESERVED_VARIABLES.intersection(variables_of(function)))
        if names:
            yield TemplateFault(
                certain=True,
                fact="A6",
                where=function.path,
                found=f"the environment sets {', '.join(names)}",
                allowed="these names are Lambda's own",
                remedy="give the variables other names",
            )


def large_environments(template: Template) -> Iterator[TemplateFault]:
    """A6: all variables of a function together have a limit."""
    for function in template.resources(_FUNCTION):
        variables = variables_of(function)
        size = sum(len(name) + least_length(value) for name, value in variables.items())
        if size > ENVIRONMENT_BYTES_MOST:
            yield TemplateFault(
                certain=True,
                fact="A6",
                where=function.path,
                found=f"the environment has {size} bytes or more",
                allowed=f"{ENVIRONMENT_BYTES_MOST} bytes, names and values together",
                remedy="keep what is large in a parameter, a table or a file of the code",
            )


def reserved_concurrency(template: Template) -> Iterator[TemplateFault]:
    """L07: what is reserved must be there; a new account has next to nothing."""
    reserving = [
        (function, int(count))
        for function in template.resources(_FUNCTION)
        if (count := number(function.properties.get("ReservedConcurrentExecutions")))
    ]
    total = sum(count for _, count in reserving)
    if total:
        most = CONCURRENCY_BY_DEFAULT - CONCURRENCY_LEFT_LEAST
        yield TemplateFault(
            certain=False,
            fact="L07",
            where=", ".join(function.path for function, _ in reserving),
            found=f"{total} executions at a time are reserved",
            allowed=f"{most} in all of an account with Lambda's usual limit, none in a new one, "
            f"which has {CONCURRENCY_OF_A_NEW_ACCOUNT}: the whole deploy fails there",
            remedy="compare the account's limit (aws lambda get-account-settings), ask for more "
            "at Service Quotas, or reserve none",
        )


def short_custom_resources(template: Template) -> Iterator[TemplateFault]:
    """F01: CloudFormation waits for a custom resource no shorter than its function may run."""
    for resource in template.resources():
        wait = number(resource.properties.get("ServiceTimeout"))
        function = template.referenced(resource.properties.get("ServiceToken"))
        if wait is None or function is None:
            continue
        runs = number(function.properties.get("Timeout")) or 0
        if wait < runs:
            yield TemplateFault(
                certain=True,
                fact="F01",
                where=resource.path,
                found=f"CloudFormation waits {wait:.0f} s for {function.path}, which may run for "
                f"{runs:.0f} s",
                allowed="a ServiceTimeout of the function's time-out or more",
                remedy="raise ServiceTimeout, or lower the function's time-out",
            )
