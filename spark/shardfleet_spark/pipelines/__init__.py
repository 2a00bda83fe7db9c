"""
Pipelines: from a stream through a function of the user's to a stream, to files or to the screen.

* :mod:`~shardfleet_spark.pipelines.plan` is what is asked for, as it travels to a cluster;
* :mod:`~shardfleet_spark.pipelines.running` runs it on any Spark;
* :mod:`~shardfleet_spark.pipelines.archive` and :mod:`~shardfleet_spark.pipelines.aggregate` are
  two pipelines that need no code;
* :mod:`~shardfleet_spark.pipelines.job` is the program that a cluster starts.
"""
