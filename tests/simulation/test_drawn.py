"""That each option and each command of an operator is drawn, or says why it is not."""

from itertools import chain

from typer.main import get_command

from shardfleet_ops.cli.app import app
from shardfleet_testkit.simulation import Options, run_seed
from shardfleet_testkit.simulation.campaign import Totals
from shardfleet_testkit.simulation.drawn import NOT_DRAWN, seeds_by_value
from shardfleet_testkit.simulation.running import config_of

SEEDS = range(1, 301)
FEWEST, MOST = 10, 12


def test_each_option_is_drawn_in_some_seeds_or_says_why_not():
    table = seeds_by_value(config_of(Options(seed=seed)) for seed in SEEDS)
    told = set(chain(*NOT_DRAWN.values()))
    constant = {name for name, values in table.items() if len(values) == 1}
    rare = {
        name: values
        for name, values in table.items()
        if len(values) > 1 and len(SEEDS) - max(values.values()) < FEWEST
    }
    assert constant == told
    assert not rare


def commands_that_ask():
    """Return the names of the commands of the command line that write once somebody says yes."""

    def asking(group, before=""):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from asking(command, f"{name} ")
            elif "yes" in {each.name for each in command.params}:
                yield f"{before}{name}"

    return set(asking(get_command(app)))


def test_each_command_of_an_operator_is_drawn_in_some_seeds_or_says_why_not():
    rates = dict.fromkeys(("command", "malformed_document", "position_import", "rewind"), 0.2)
    asked, totals = commands_that_ask(), Totals()
    for seed in SEEDS[:MOST]:
        totals.add(run_seed(Options(seed=seed, is_small=True, busy_s=40.0, rates=rates)))
        body = totals.body()
        drawn = {*body["seeds_by_command"], *body["commands_not_drawn"]}
        if drawn >= asked:
            break
    assert drawn == asked
    assert not body["violations"]
    assert sum(body["seeds_by_value"]["filters"].values()) == body["seeds"]
