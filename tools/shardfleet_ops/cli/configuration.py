"""`shardfleet config`: every setting of a fleet, as a page; docs/configuration.md is its output."""

from typing import TYPE_CHECKING, Any

from shardfleet_ops.cli.fleet_access import JsonOption
from shardfleet_ops.cli.telling import tell

if TYPE_CHECKING:
    from shardfleet.config import Option

_HEAD = """\
# Configuration

Every setting of a fleet, with its default and what is allowed.
This page is what `shardfleet config` prints.

The construct takes them typed, so that mypy refuses a wrong name:
`ShardFleet(..., config={"failover_ms": 15_000}, experts={"cycle_ms": 30_000})`.
`cdk.json` takes all as `"shardfleet:config": {"failover_ms": 15000}`.
The functions read them as environment variables: `SHARDFLEET_` and the name in capitals.
A wrong value is refused at synthesis, with what was found and what is allowed.
Names end in their unit: `_ms` milliseconds, `_bytes` bytes, `_s` seconds.
"""
_TABLE = "| setting | default | allowed | meaning |\n|---|---|---|---|\n"
# Who sets an option, as in `--json`: its section.
_SECTIONS = {
    "config": "Settings: `config`",
    "experts": "Settings for experts: `experts`",
    "construct": "Set by the construct",
}


def config(*, as_json: JsonOption = False) -> None:
    """Print every setting of a fleet: name, default, what is allowed, and what it means."""
    tell(_settings(), configuration_page().splitlines(), as_json=as_json)


def configuration_page() -> str:
    """Return the page of all settings, Markdown."""
    page = _HEAD
    for set_by, title in _SECTIONS.items():
        page += f"\n## {title}\n\n{_TABLE}"
        page += "".join(_row(each) for each in _settings() if each["set_by"] == set_by)
    return page


def _row(setting: dict[str, Any]) -> str:
    return (
        f"| `{setting['name']}` | {_default(setting['default'])} | {setting['allowed']} | "
        f"{setting['meaning'].replace('|', chr(92) + '|')} |\n"
    )


def _settings() -> list[dict[str, Any]]:
    from shardfleet.config import DeployedConfig, ExpertConfig, FleetConfig, options

    classes = {"config": FleetConfig, "experts": ExpertConfig, "construct": DeployedConfig}
    set_by = {name: who for who, cls in classes.items() for name in cls.__annotations__}
    return [
        {
            "name": each.name,
            "set_by": set_by[each.name],
            "default": None if each.is_required else each.default,
            "allowed": _allowed(each),
            "meaning": each.doc,
        }
        for each in options()
    ]


def _default(value: object) -> str:
    if value is None:
        return "set by the construct"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"`{value}`" if value != "" else "empty"


def _allowed(option: "Option") -> str:
    from shardfleet.config import ANY, OneOf, Range

    match option.allowed:
        case OneOf(words):
            return ", ".join(f"`{word}`" for word in words)
        case Range(low, high):
            return f"{low} or more" if high == ANY else f"{low} to {high}"
        case None:
            return "true, false" if option.kind is bool else "text"
