"""
Writes `sbom.cdx.json` beside each lock of what is deployed: `make lock` runs it.

CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/): one component for each package, with its
package URL and the hashes of its files. Nothing in it but the lock's, so the same lock gives the
same bytes.
"""

import json
import re
import sys
from pathlib import Path

_PIN = re.compile(r"(?m)^([A-Za-z0-9._-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$")


def bill_of(lock: str, name: str) -> dict[str, object]:
    """
    Return the bill of materials of a lock.

    Raises:
        ValueError: the lock has no package with a hash.

    """
    packages = _PIN.findall(lock)
    if not packages:
        message = f"{name}: no package with a hash found in the lock; make it by `make lock`"
        raise ValueError(message)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": name}},
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{package}@{version}",
                "name": package,
                "version": version,
                "purl": f"pkg:pypi/{package}@{version}",
                "hashes": [
                    {"alg": "SHA-256", "content": digest}
                    for digest in re.findall(r"[0-9a-f]{64}", hashes)
                ],
            }
            for package, version, hashes in packages
        ],
    }


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        lock = Path(folder, "requirements.txt").read_text("utf-8")
        text = json.dumps(bill_of(lock, f"shardfleet {folder}"), indent=1) + "\n"
        Path(folder, "sbom.cdx.json").write_text(text, "utf-8")
