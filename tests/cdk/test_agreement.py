"""Names that construct and library write down apart (the construct imports no SDK) are the same."""

import importlib
import importlib.util
from pathlib import Path

from shardfleet.adapters import dead_letters
from shardfleet.adapters.dynamodb import items as dynamodb_items
from tests.cdk.templates import of_type

ROOT = Path(__file__).resolve().parents[2]


def test_the_lease_tables_names_are_the_adapters():
    from shardfleet_cdk import lease_table  # noqa: PLC0415

    assert lease_table.LEASE_KEY == dynamodb_items.LEASE_KEY
    assert lease_table.LEASE_OWNER == dynamodb_items.LEASE_OWNER
    assert lease_table.OWNER_INDEX == dynamodb_items.OWNER_INDEX


def test_given_up_records_are_written_where_the_worker_may_write():
    from shardfleet_cdk import failed_records  # noqa: PLC0415

    assert f"{dead_letters.S3_PREFIX}/" == failed_records.KEY_PREFIX


def test_the_functions_entry_points_exist(minimum):
    """Handler strings name a function of the library, or of a file in the function's folder."""
    for function in of_type(minimum, "AWS::Lambda::Function").values():
        module, _, name = function["Handler"].rpartition(".")
        if module.startswith("shardfleet."):
            assert callable(getattr(importlib.import_module(module), name))
        else:
            folder = "first_run" if name == "handler" else "lease_manager"
            file = ROOT / "functions" / folder / f"{module}.py"
            spec = importlib.util.spec_from_file_location(folder, file)
            loaded = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded)
            assert callable(getattr(loaded, name))
