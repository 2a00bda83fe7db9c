"""Tables that take each micro-batch once, appended or merged by key: Delta and Iceberg."""
