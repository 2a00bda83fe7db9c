"""EventBridge Scheduler in the embedded AWS: looked at each second instead of each ten."""

from ministack.services import scheduler

from shardfleet.local.aws.patches import Patch
from shardfleet.local.aws.settings import ServerSettings


def _tick(settings: ServerSettings) -> None:
    scheduler._SCHEDULE_TICK_INTERVAL = settings.schedule_tick_s


PATCHES = (
    Patch(
        gap="A schedule fires up to ten seconds late",
        touches=("ministack.services.scheduler:_SCHEDULE_TICK_INTERVAL",),
        apply=_tick,
    ),
)
"""What this module corrects in ministack."""
