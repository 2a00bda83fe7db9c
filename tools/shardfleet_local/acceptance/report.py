"""The report that is kept: Markdown for people, JSON for programs; no account is named in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardfleet_local.acceptance.measured import Shown, StepRow
from shardfleet_local.acceptance.plan import AcceptanceSize, price

HIDDEN = "(account)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReport:
    """
    What is written.

    Attributes:
        name: of the run.
        where: ``AWS, <region>``, or ``the embedded AWS``.
        version: of shardfleet.
        began: the begin, ISO 8601 in UTC.
        size: how much was done.
        rows: the steps.
        hidden: an account's id that is not to be written; "" writes it.

    """

    name: str
    where: str
    version: str
    began: str
    size: AcceptanceSize
    rows: Sequence[StepRow]
    hidden: str

    @property
    def passed(self) -> bool:
        """Tell whether no promise was broken, and nothing is left."""
        return all(row.measured.shown is not Shown.FAILED for row in self.rows)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        page, document = folder / f"{self.name}.md", folder / f"{self.name}.json"
        page.write_text(self._clean("\n".join(self._lines())) + "\n", encoding="utf-8")
        document.write_text(self._clean(json.dumps(self._document(), indent=2)) + "\n", "utf-8")
        return page, document

    def _clean(self, text: str) -> str:
        return text.replace(self.hidden, HIDDEN) if self.hidden else text

    def _lines(self) -> Iterator[str]:
        total_s = sum(row.took_ms for row in self.rows) / 1000
        yield f"# Acceptance: {'passed' if self.passed else 'FAILED'}"
        yield ""
        yield f"* run: {self.name}, {self.began}, on {self.where}, shardfleet {self.version}"
        yield (
            f"* size: {self.size.records:,} records at least, {self.size.shards} shards at the "
            f"beginning, {total_s / 60:.1f} minutes"
        )
        yield f"* price announced: at most ${price(self.size).total:.2f}"
        yield ""
        yield "| step | what it does | promised | measured | result | seconds |"
        yield "|---|---|---|---|---|---|"
        for row in self.rows:
            cells = (
                row.step.name,
                row.step.does,
                f"{row.step.promise} ({row.step.page})",
                row.measured.text,
                row.measured.shown.value,
                f"{row.took_ms / 1000:.1f}",
            )
            yield "| " + " | ".join(_cell(each) for each in cells) + " |"

    def _document(self) -> dict[str, object]:
        return {
            "name": self.name,
            "where": self.where,
            "version": self.version,
            "began": self.began,
            "passed": self.passed,
            "price_most_dollars": price(self.size).total,
            "steps": [
                {
                    "name": row.step.name,
                    "does": row.step.does,
                    "promise": row.step.promise,
                    "page": row.step.page,
                    "result": row.measured.shown.value,
                    "measured": row.measured.text,
                    "figures": dict(row.measured.figures),
                    "took_ms": row.took_ms,
                }
                for row in self.rows
            ],
        }


def _cell(text: str) -> str:
    """Return text as one cell: no line break and no bar ends it."""
    return " ".join(text.split()).replace("|", "\\|")
