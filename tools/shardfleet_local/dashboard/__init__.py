"""
A fleet's CloudWatch dashboard as a web page on this machine, for AWS and the embedded AWS alike.

The definition is the one that was deployed; nothing is drawn that it does not say, but for the
table of leases.
"""
