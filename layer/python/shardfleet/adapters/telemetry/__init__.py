"""Events as metrics and logs: CloudWatch and OpenTelemetry."""
