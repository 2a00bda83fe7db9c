"""
The rig: one idea, a fleet that is deployed, fed, disturbed and judged; demo and chaos are its runs.

    source.py      the records: a file of the user's, or a generated click stream
    fleet.py       deploys: `running_fleet` on the embedded AWS (assembly_cache.py)
    processes.py   the same as plain processes: `running_processes`, without a stack
    feed.py        feeds: through the producer, and notes where each record went
    incidents.py   disturbs: kills, freezes, reshards; proxy.py lets calls fail
    ledger.py      what handlers finished, in order (probe/ is the witness in the workers)
    verdict.py     judges: what was sent against what was handled, leases, recoveries
    run.py         one run to its end
    outcome.py     what is asked of it, and what came of it, as `result.json`; report.py and
                   charts.py, for a person
    spark_part.py  the same stream through Spark

One of each, whoever runs it: one feed, one ledger (in a file or a bucket), one match of what was
sent with what was handled, one list of what was done, one loop that looks (waiting.py). Demo and
chaos differ in their options alone; the room `acceptance` does with the same parts what has to be
done in an account, step by step; the room `own` runs a user's handler on them.

Tests use these too: feed a `running_fleet`, do something to it, and ask for the `verdict`.
"""
