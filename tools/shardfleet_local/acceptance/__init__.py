"""
The acceptance: the whole fleet in an account of the user's, or on the embedded AWS, and a report.

    plan.py         how large, under which name, and what it may cost at most
    deployment.py   its bucket and its stack: made, deployed anew, destroyed, and what is left
    facts.py        what AWS is asked to confirm: behaviour that the fleet relies on
    scene.py        what the steps work on: the deployed fleet, its feed, its ledger
    steps.py        the steps, each a row of the report
    run.py          one after the other; whatever happens, all is destroyed
    report.py       its rows, and both of its files: Markdown and JSON

Nothing is written outside of what bears the name of the run: a stack, and a bucket.
"""
