"""A folder's key is the same each time, another user cannot read what it comes of."""

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_local.access import key_of_folder


def test_a_folder_keeps_its_key_and_no_other_has_it(tmp_path):
    seed = tmp_path / "cache/seed"
    first = key_of_folder(tmp_path / "shop", seed_file=seed)

    assert key_of_folder(tmp_path / "x/../shop", seed_file=seed) == first
    assert (seed.stat().st_mode & 0o777, seed.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    others = [
        key_of_folder(tmp_path / "other", seed_file=seed),
        key_of_folder(tmp_path / "shop", seed_file=tmp_path / "another/seed"),
    ]
    assert len({first.id, first.secret, *(key.id for key in others)}) == 4
    assert len({first.secret, *(key.secret for key in others)}) == 3
    # What IAM allows of a key id: 16 to 128 word characters (AccessKeyId).
    assert first.id.startswith("AKIA")
    assert len(first.id) == 36
    assert first.id.isalnum()


@pytest.mark.parametrize(("content", "mode"), [(b"x" * 32, 0o644), (b"x" * 31, 0o600)])
def test_a_secret_that_others_read_or_that_is_cut_off_is_refused(tmp_path, content, mode):
    seed = tmp_path / "seed"
    seed.write_bytes(content)
    seed.chmod(mode)

    with pytest.raises(ConfigurationError, match="delete it"):
        key_of_folder(tmp_path, seed_file=seed)
