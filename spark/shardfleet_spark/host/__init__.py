"""What Spark runs on: Java, Python, folders, versions, a driver that lives."""
