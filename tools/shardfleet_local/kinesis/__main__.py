"""`python -m shardfleet_local.kinesis --port N`."""

from shardfleet_local.kinesis.server import main

if __name__ == "__main__":
    main()
