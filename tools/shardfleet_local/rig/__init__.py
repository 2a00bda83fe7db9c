"""
The rig: one idea, a fleet that is deployed, fed, disturbed and judged; demo and chaos are its runs.

    source.py    the records: a file of the user's, or a generated click stream
    fleet.py     `running_fleet`: synthesize, start, deploy
    feed.py      a steady feed through the producer, and where each record went
    ledger.py    what handlers finished, in order (probe/ is the witness in the worker processes)
    verdict.py   what was sent against what was handled

Tests use these too: feed a `running_fleet`, do something to it, and ask for the `verdict`.
"""
