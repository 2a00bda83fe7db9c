"""
The driver's half: where a query begins and stands, and what it reads next.

More than a dozen modules, and one idea: each gathers or decides a part of the next plan, whose only
caller is the driver.
"""
