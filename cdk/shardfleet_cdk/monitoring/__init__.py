"""
Seeing a fleet: one dashboard, the alarms of the run-book, and one composite alarm that pages.

Plain CloudWatch constructs, in the manner of cdk-monitoring-constructs (metrics apart from
widgets, alarms overridden by name): that library gives alarms fixed physical names, so that two
fleets can collide, and has nothing for most of what is watched here.
"""

from shardfleet_cdk.monitoring.settings import AlarmLevel, AlarmSetting, MonitoringOptions

__all__ = ["AlarmLevel", "AlarmSetting", "MonitoringOptions"]
