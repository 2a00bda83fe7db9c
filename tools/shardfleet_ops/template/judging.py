"""All that is known of templates that AWS would refuse, asked of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardfleet_ops.template import alarms, functions, machines, references, spark, stores, whole
from shardfleet_ops.template.reading import Template, TemplateFault

CHECKS: tuple[Callable[[Template], Iterator[TemplateFault]], ...] = (
    functions.reserved_variables,
    functions.large_environments,
    functions.reserved_concurrency,
    functions.short_custom_resources,
    machines.missing_states,
    machines.impatient_tasks,
    machines.large_definitions,
    machines.broken_inputs,
    machines.wrong_names,
    alarms.long_look_backs,
    alarms.wrong_dimensions,
    alarms.long_rules,
    alarms.deaf_table_alarms,
    alarms.lame_sums,
    alarms.blind_fills,
    alarms.old_spark_metrics,
    stores.keys_closed_to_logs,
    stores.lease_tables_without_index,
    stores.leaks,
    references.wrong_references,
    references.idle_rights,
    references.unlikely_instants,
    spark.wrong_tokens,
    spark.long_submits,
    spark.too_few_executors,
    spark.small_applications,
    whole.size,
    whole.partition,
    whole.large_policies,
)


def judge(template: Template) -> list[TemplateFault]:
    """Return everything that is wrong with a template as far as the facts go, the certain first."""
    found = [fault for check in CHECKS for fault in check(template)]
    return sorted(found, key=lambda fault: not fault.certain)
