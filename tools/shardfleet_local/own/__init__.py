"""
A user's own handler on the embedded AWS: copied, run over records, given new code while it runs.

    own_code.py         its folder copied without what Lambda would not get, its loading tried
    own_run.py          `shardfleet local run`: records through it, until all are handled, and
                        what it prints
    reloading.py        `shardfleet local up`: new code as soon as a file has changed
"""
