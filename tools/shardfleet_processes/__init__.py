"""The fleet as plain processes: what stands in for Lambda and Step Functions."""
