"""A Spark Connect server on loopback, until its standard input ends: `… connect_server.py PORT`."""

import sys

from pyspark.sql import SparkSession

from tests.spark.conftest import SETTINGS

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[2]").config(map=SETTINGS)
    builder = builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
    session = builder.config("spark.connect.grpc.binding.port", sys.argv[1]).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    session.stop()
