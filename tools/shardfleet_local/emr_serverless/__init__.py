"""
EMR Serverless in memory: applications and job runs with the states and refusals of the real one.

There is no Spark in it: what a run does, and for how long, is told by whoever makes the engine.

    engine.py      EmrServerless: operations as calls, on an injected clock (use it in tests)
    lives.py       an application and a run: what they are, and what happens to them next
    requests.py    requests by botocore's model: which operation, and what breaks its constraints
"""
