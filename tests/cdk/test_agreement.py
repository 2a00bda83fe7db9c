"""Names that construct and library write down apart (the construct imports no SDK) are the same."""

import importlib
import importlib.util
from pathlib import Path

from shardfleet.adapters.dynamodb import items as dynamodb_items
from shardfleet.domain.delivery import given_up
from shardfleet.engine.state.kinds import (
    GONE,
    LANES,
    LEDGER,
    NAP,
    NOTE,
    PIN,
    PROMPT,
    SLOT,
    STOP,
    STREAM,
    TIP,
    WINDOW,
    WORKER_KINDS,
)
from shardfleet.engine.worker import ports as worker_ports
from shardfleet.runtime import managing
from shardfleet_testkit.simulation import Options, functions, run_seed
from tests.cdk.templates import of_type

ROOT = Path(__file__).resolve().parents[2]


def test_the_lease_tables_names_are_the_adapters():
    from shardfleet_cdk import lease_table  # noqa: PLC0415

    assert lease_table.LEASE_KEY == dynamodb_items.LEASE_KEY
    assert lease_table.LEASE_OWNER == dynamodb_items.LEASE_OWNER
    assert lease_table.OWNER_INDEX == dynamodb_items.OWNER_INDEX


def test_given_up_records_are_written_where_the_worker_may_write():
    from shardfleet_cdk import failed_records  # noqa: PLC0415

    assert f"{given_up.S3_PREFIX}/" == failed_records.KEY_PREFIX


def test_a_worker_may_write_the_kinds_of_documents_that_it_writes(monkeypatch):
    written = set()

    def noting(call):
        def noted(kind, *arguments, **more):
            written.add(kind)
            return call(kind, *arguments, **more)

        return noted

    def watched(**ports):
        state = ports["state"]
        for name in ("write", "increment", "delete"):
            setattr(state, name, noting(getattr(state, name)))
        return worker_ports.WorkerPorts(**ports)

    monkeypatch.setattr(functions, "WorkerPorts", watched)
    for seed in range(2):
        run_seed(Options(seed=seed, is_small=True))

    assert {SLOT, TIP, STREAM} <= written
    mine = {GONE, LANES, NAP, NOTE, PIN, PROMPT, SLOT, STOP, STREAM, TIP, WINDOW}
    assert {*WORKER_KINDS} == {*mine, "ledger *"}
    assert written <= mine
    assert LEDGER.of_day("2026-11-22").startswith("ledger ")


def test_the_functions_entry_points_exist(minimum, monkeypatch):
    """Handler strings name a function of the library, or of a file in the function's folder."""
    for function in of_type(minimum, "AWS::Lambda::Function").values():
        module, _, name = function["Handler"].rpartition(".")
        if module.startswith("shardfleet."):
            assert callable(getattr(importlib.import_module(module), name))
        else:
            folder = "first_run" if name == "handler" else "lease_manager"
            # It sets up the process that it is the function of, which this one is not.
            monkeypatch.setattr(managing, "collect_seldom", lambda: None)
            file = ROOT / "functions" / folder / f"{module}.py"
            monkeypatch.syspath_prepend(file.parent)
            spec = importlib.util.spec_from_file_location(folder, file)
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            assert callable(getattr(loaded, name))
