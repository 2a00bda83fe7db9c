"""
What happens in a run, one step after the other, records flowing; each step says what it measured.

Both orders are in each: whoever is drained or killed comes back to one that has everything.
"""

import itertools

from shardfleet.domain.balance.kcl3 import UPGRADING
from shardfleet.domain.balance.migration import MigrationTask
from shardfleet_ops.cli.migrate import SAID
from tests.interop.checker import FLEET, JAVA, forced, given, moves, takeovers_ms
from tests.interop.scene import Disappointed, now_ms
from tests.interop.versions import jars_of

# The first owner waits for the KCL's own start; shares are to be there within three minutes.
BEGIN_MOST_S, SHARE_MOST_S, MOVE_MOST_S = 180, 180, 120
TAKEOVER_MOST_MS = 20_000
LOCK_MOST_S = 150
# A KCL 3's leader forgets a dead worker a minute after its row, and runs each 20 s (§3.2).
DEAD_FLEET_MOST_S = 150
# Java's leader may be another worker until its second election after the first one's minute.
UPGRADE_MOST_S, SWITCH_S = 660, 100
# Java's leader evens out a part each minute, and a dead worker's row draws leases for as long.
CPU_SHARE_MOST_S = 480
FED_LEAST, FED_MOST_S = 50_000, 400
UNTOUCHED_S, KEPT_S, SETTLE_S, CANNOT_S = 30, 10, 180, 60
_TO_FLEET = (
    MigrationTask.HIDE, MigrationTask.AWAIT_HIDDEN, MigrationTask.MOVE,
    MigrationTask.AWAIT_HANDOVERS, MigrationTask.AWAIT_JAVAS_END,
)  # fmt: skip
_TO_JAVA = (
    MigrationTask.HIDE, MigrationTask.AWAIT_HIDDEN, MigrationTask.MOVE,
    MigrationTask.AWAIT_HANDOVERS, MigrationTask.DRAIN,
)  # fmt: skip


def java_begins(scene):
    scene.java.start()
    seconds = scene.until(lambda: scene.has_all(JAVA), BEGIN_MOST_S, "Java has all leases")
    scene.feed()
    return {"seconds": seconds}


def fleet_begins(scene):
    scene.make_table()
    scene.deploy_fleet()
    seconds = scene.until(lambda: scene.has_all(FLEET), BEGIN_MOST_S, "the fleet has all leases")
    scene.feed()
    return {"seconds": seconds}


def fleet_joins(scene):
    scene.deploy_fleet()
    return _shared(scene)


def java_joins(scene):
    scene.java.start()
    return _shared(scene)


def java_joins_after_a_kill(scene):
    """Its leader died: a KCL 3 takes the lock once it has stood still for two minutes (§2.2)."""
    scene.java.start()
    return _shared(scene, within_s=SHARE_MOST_S + LOCK_MOST_S)


def _shared(scene, *, within_s=SHARE_MOST_S):
    """Each side has a quarter, and keeps it."""
    seconds = scene.until(scene.is_shared, within_s, "each side has a quarter")
    scene.rest(KEPT_S)
    if not scene.is_shared():
        raise Disappointed(f"not kept: {scene.count()}")
    return {"seconds": seconds, "leases": _leases(scene)}


def java_shard_splits(scene):
    owners = scene.owners()
    shard = next(s for s in scene.open_shards() if scene.side(owners[s["ShardId"]]) == JAVA)
    scene.split(shard)
    return _resharded(scene, {shard["ShardId"]})


def owners_merge(scene):
    """Merge two neighbours of which each side has one."""
    owners, shards = scene.owners(), scene.open_shards()
    sides = {s["ShardId"]: scene.side(owners[s["ShardId"]]) for s in shards}
    pairs = itertools.pairwise(shards)
    pair = next(p for p in pairs if {sides[s["ShardId"]] for s in p} == {JAVA, FLEET})
    scene.merge(*pair)
    return _resharded(scene, {shard["ShardId"] for shard in pair})


def _resharded(scene, parents):
    def is_done():
        owners = scene.owners()
        is_open = {shard["ShardId"] for shard in scene.open_shards()}
        return not parents & owners.keys() and is_open == owners.keys() and all(owners.values())

    seconds = scene.until(is_done, MOVE_MOST_S, "the children have owners")
    return {"seconds_to_children": seconds} | _shared(scene)


def fleet_drains(scene):
    """A drained slot gets no lease, and Java has them all."""
    scene.shardfleet("drain", "--yes", "--reason", "interop")
    drained_ms = now_ms()
    seconds = scene.until(lambda: scene.has_all(JAVA), MOVE_MOST_S, "Java has all leases")
    scene.rest(UNTOUCHED_S)
    return {"seconds": seconds} | _untouched(scene, drained_ms)


def fleet_resumes(scene):
    scene.shardfleet("resume", "--all", "--yes")
    return _shared(scene)


def _untouched(scene, from_ms):
    java = frozenset(scene.java.workers)
    shards = given(scene.watcher.history, FLEET, java=java, from_ms=from_ms, to_ms=now_ms())
    if shards:
        raise Disappointed(f"the fleet was given {shards}")
    return {"given_to_the_fleet": 0, "in_s": round((now_ms() - from_ms) / 1000)}


def java_is_killed(scene):
    """Everything that Java had is taken over soon."""
    end = scene.kill_java()
    seconds = scene.until(lambda: scene.has_all(FLEET), MOVE_MOST_S, "the fleet has all leases")
    found = takeovers_ms(scene.watcher.history, end)
    late = {shard: ms for shard, ms in found.items() if ms is None or ms > TAKEOVER_MOST_MS}
    if late or not found:
        raise Disappointed(f"not taken over within {TAKEOVER_MOST_MS} ms: {late or 'nothing'}")
    return {"seconds": seconds, "takeovers": len(found), "longest_ms": max(found.values())}


def worker_is_killed(scene):
    """Another process goes on with the same leases."""
    end = scene.kill_worker()
    scene.rest(UNTOUCHED_S)
    moved = moves(scene.watcher.history, from_ms=end.at_ms, to_ms=now_ms())
    return {"moves": moved} | _shared(scene)


def fleet_is_killed(scene):
    scene.kill_fleet()
    seconds = scene.until(lambda: scene.has_all(JAVA), DEAD_FLEET_MOST_S, "Java has all leases")
    return {"seconds": seconds}


def fleet_comes_back(scene):
    scene.let_fleet_begin()
    return _shared(scene)


def quiet(scene, seconds):
    """Once the KCL's leader has had three minutes to even out, next to nothing moves."""
    scene.rest(SETTLE_S)
    began_ms = now_ms()
    scene.rest(seconds)
    moved = moves(scene.watcher.history, from_ms=began_ms, to_ms=now_ms())
    a_minute = 60_000 * moved / (now_ms() - began_ms)
    if a_minute > 1:
        raise Disappointed(f"{moved} moves in {seconds} quiet seconds")
    return {"moves": moved, "moves_a_minute": round(a_minute, 2)} | _shared(scene)


def _leases(scene):
    found = scene.count()
    return {side: found[side] for side in (JAVA, FLEET)}


def fleet_cannot_work(scene):
    """On a KCL 2's table there is no index: workers crash, and take nothing from who works."""
    scene.deploy_fleet()
    began_ms = now_ms()
    scene.rest(CANNOT_S)
    return _untouched(scene, began_ms)


def java_2_gives_way(scene):
    """Its leases are taken while records flow; then its workers end in order."""
    scene.begin_command("migrate", "--from-java", "--yes", "--wait", "60")
    seconds = scene.until(lambda: scene.has_all(FLEET), MOVE_MOST_S, "the fleet has all leases")
    scene.stop_java()
    took = scene.end_command()
    return {"seconds": seconds, "command_s": took}


def java_2_takes_over(scene):
    """The fleet is drained, and Java takes what is free."""
    scene.java.start()
    scene.begin_command("migrate", "--to-java", "--yes", "--wait", "150")
    seconds = scene.until(lambda: scene.has_all(JAVA), SHARE_MOST_S, "Java has all leases")
    took = scene.end_command()
    drained_ms = now_ms()
    scene.rest(UNTOUCHED_S)
    return {"seconds": seconds, "command_s": took} | _untouched(scene, drained_ms)


def migrates_to_fleet(scene):
    """Every lease is handed over while records flow; then Java's workers end in order."""
    scene.begin_command("migrate", "--from-java", "--yes", "--wait", "150")
    seconds = scene.until(lambda: scene.has_all(FLEET), MOVE_MOST_S, "the fleet has all leases")
    handed = now_ms()
    scene.rest(KEPT_S)
    scene.stop_java()
    took = scene.end_command()
    moved = moves(scene.watcher.history, from_ms=handed, to_ms=now_ms())
    if moved:
        raise Disappointed(f"{moved} moves after all was handed over")
    return {"seconds": seconds, "command_s": took, "moves_after": moved}


def migrates_to_java(scene):
    """And back: Java has begun beside, and is given everything."""
    scene.java.start()
    scene.until(scene.java_is_seen, SHARE_MOST_S, "Java shows itself")
    scene.begin_command("migrate", "--to-java", "--yes", "--wait", "150")
    seconds = scene.until(lambda: scene.has_all(JAVA), MOVE_MOST_S, "Java has all leases")
    took = scene.end_command()
    drained_ms = now_ms()
    scene.rest(UNTOUCHED_S)
    return {"seconds": seconds, "command_s": took} | _untouched(scene, drained_ms)


def aborted_on_the_way_to_the_fleet(scene):
    """At each step of it: both share again, and Java reads what it finds."""
    return _aborted(scene, "--from-java", _TO_FLEET)


def aborted_on_the_way_to_java(scene):
    """At each step of it, the last of which has drained the fleet."""
    return _aborted(scene, "--to-java", _TO_JAVA, "resume", "--all", "--yes")


def _aborted(scene, direction, tasks, *after_the_last):
    """Interrupt the command at each step, end the migration, and see both share again."""
    found = {}
    for n in range(len(tasks)):
        # What is over within a second is not told, and the next step is.
        cut_at = _cut(scene, direction, *tasks[n:])
        if after_the_last and cut_at is tasks[-1]:
            scene.shardfleet(*after_the_last)
        # What was begun comes to its end, as any handover does.
        scene.rest(KEPT_S)
        leases, seconds = _leases(scene), _shared(scene)["seconds"]
        found[f"{n + 1}. at {cut_at.name}"] = f"{leases}, shared after {seconds} s"
    return found


def _cut(scene, direction, *tasks):
    """Interrupt the command at the first of these that it tells, and end the migration."""
    texts = [SAID[task].split("{")[0] for task in tasks]
    scene.begin_command("migrate", direction, "--yes", "--wait", "150")
    cut_at = tasks[texts.index(scene.cut_command(texts, MOVE_MOST_S))]
    scene.shardfleet("migrate", "--abort", "--yes")
    return cut_at


def aborted_where_the_index_is_missing(scene):
    """As it is asked for, and while it is built; then the fleet can work, and both share."""
    _cut(scene, "--from-java", MigrationTask.MAKE_INDEX)
    _cut(scene, "--from-java", MigrationTask.AWAIT_INDEX)
    return _shared(scene)


def aborted_beside_a_kcl_2(scene):
    """Leases are taken, not handed over, and each side takes its part again."""
    found = _aborted(scene, "--from-java", (MigrationTask.HIDE, MigrationTask.MOVE))
    return found | _aborted(scene, "--to-java", (MigrationTask.DRAIN,), "resume", "--all", "--yes")


def aborted_as_a_paused_fleet_is_resumed(scene):
    scene.shardfleet("pause", "--all", "--yes")
    scene.until(lambda: scene.has_all(JAVA), MOVE_MOST_S, "Java has all leases")
    _cut(scene, "--from-java", MigrationTask.RESUME)
    return _shared(scene)


def aborted_while_no_process_of_the_fleet_lives(scene):
    """Its rows are there until Java's leader forgets it; then no slot has room."""
    found = {}
    for direction in ("--from-java", "--to-java"):
        scene.kill_fleet()
        _cut(scene, direction, MigrationTask.AWAIT_HIDDEN)
        found[direction] = f"{_leases(scene)} at AWAIT_HIDDEN"
        scene.until(lambda: scene.has_all(JAVA), DEAD_FLEET_MOST_S, "Java has all leases")
        if direction == "--from-java":
            _cut(scene, direction, MigrationTask.AWAIT_SLOTS)
        scene.let_fleet_begin()
        found[direction] += f", shared after {_shared(scene)['seconds']} s"
    return found


def aborted_while_leases_of_a_dead_java_expire(scene):
    """No manager is there to take them yet; another worker of Java's has its part afterwards."""
    scene.kill_fleet()
    scene.until(lambda: scene.has_all(JAVA), DEAD_FLEET_MOST_S, "Java has all leases")
    scene.kill_java()
    _cut(scene, "--from-java", MigrationTask.AWAIT_EXPIRY)
    scene.let_fleet_begin()
    seconds = scene.until(lambda: scene.has_all(FLEET), MOVE_MOST_S, "the fleet has all leases")
    return {"seconds_to_the_fleet": seconds} | java_joins_after_a_kill(scene)


def aborted_while_there_is_no_java(scene):
    """Its row is fresh for a minute; then the fleet is drained, and nobody takes its leases."""
    scene.kill_java()
    scene.until(lambda: scene.has_all(FLEET), MOVE_MOST_S, "the fleet has all leases")
    _cut(scene, "--to-java", MigrationTask.AWAIT_LIFE)
    if not scene.has_all(FLEET):
        raise Disappointed(f"something was given to a dead Java: {scene.count()}")
    _cut(scene, "--to-java", MigrationTask.AWAIT_JAVA)
    scene.shardfleet("resume", "--all", "--yes")
    seconds = scene.until(lambda: scene.has_all(FLEET), MOVE_MOST_S, "the fleet has all leases")
    return {"seconds_to_the_fleet": seconds} | java_joins_after_a_kill(scene)


def aborted_at_the_end_of_the_way_to_java(scene):
    """Everything is where it is to be, and the fleet is drained."""
    _cut(scene, "--to-java", MigrationTask.SHOW)
    if not scene.has_all(JAVA):
        raise Disappointed(f"Java has not all leases: {scene.count()}")
    scene.shardfleet("resume", "--all", "--yes")
    return _shared(scene)


def aborted_at_the_end_of_the_way_to_the_fleet(scene):
    """Java's workers have ended in order."""
    scene.begin_command("migrate", "--from-java", "--yes", "--wait", "150")
    scene.until(lambda: scene.has_all(FLEET), MOVE_MOST_S, "the fleet has all leases")
    scene.stop_java()
    scene.cut_command([SAID[MigrationTask.SHOW]], MOVE_MOST_S)
    scene.shardfleet("migrate", "--abort", "--yes")
    if not scene.has_all(FLEET):
        raise Disappointed(f"the fleet has not all leases: {scene.count()}")
    return java_joins_after_a_kill(scene)


def java_2_begins(scene):
    scene.java.start(jars_of(scene.version.before))
    seconds = scene.until(lambda: scene.has_all(JAVA), BEGIN_MOST_S, "Java has all leases")
    scene.feed()
    return {"seconds": seconds}


def java_3_joins_as_a_kcl_2(scene):
    """It makes the index and says that an upgrade has begun."""
    worker = scene.java.start(upgrades=["CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"])

    def has_its_part():
        return scene.upgrade == UPGRADING and list(scene.owners().values()).count(worker) > 1

    return {"seconds": scene.until(has_its_part, SHARE_MOST_S, "an upgrade has begun")}


def java_2_ends(scene):
    """
    The last worker of the KCL 2 does, before it is too late for this test.

    Java's workers elect a leader when they begin, after a minute, and then each five (§1.10).
    """
    scene.stop_java("java-1")
    seconds = scene.until(
        lambda: "java-1" not in scene.owners().values(), MOVE_MOST_S, "the other has all"
    )
    return {"seconds": seconds}


def fleet_joins_the_upgrade(scene):
    """It takes its part as beside a KCL 2, and Java's leader waits for its rows."""
    found = fleet_joins(scene)
    if scene.upgrade != UPGRADING:
        raise Disappointed(f"{scene.upgrade} before the fleet had its part")
    return found


def upgrade_completes(scene):
    """Once every owner has shown a row for a while: in life ten minutes, here two."""
    seconds = scene.until(
        lambda: scene.upgrade == "CLIENT_VERSION_3X_WITH_ROLLBACK", UPGRADE_MOST_S, "is upgraded"
    )
    # Each worker looks each minute, or half as long again, how far it has come.
    scene.rest(SWITCH_S)
    began_ms = now_ms()
    found = _shared(scene)
    scene.rest(UNTOUCHED_S)
    return {"seconds_to_upgrade": seconds} | found | {"seized": _seized(scene, began_ms)}


def upgrade_is_rolled_back(scene):
    """And all work as beside a KCL 2 again."""
    scene.roll_back()
    scene.rest(SWITCH_S)
    return _shared(scene)


def _seized(scene, from_ms):
    """Return how many leases changed hands by force since; with a KCL 3 none does."""
    found = [
        shard
        for shard, looks in scene.watcher.history.items()
        for _, after in forced(looks)
        if after.at_ms >= from_ms
    ]
    if found:
        raise Disappointed(f"taken by force after the upgrade: {found}")
    return 0


def processes_join(scene):
    """Each of three has its part by CPU, of which Java's has half, and keeps it."""
    scene.start_processes()
    seconds = scene.until(scene.is_shared_by_cpu, CPU_SHARE_MOST_S, "each has its part by CPU")
    return {"seconds": seconds} | _kept_by_cpu(scene)


def rows_have_cpu(scene):
    """In the rows that Java's leader reads each process has what its task tells, and the range."""
    found = scene.rows()
    wrong = {who: row for who, row in found.items() if row != (["C"], ["C"], [100.0])}
    if wrong or len(found) != 1 + scene.version.processes:
        raise Disappointed(f"rows: {found}")
    return {"rows": len(found)}


def process_ends(scene):
    """At SIGTERM: it hands over, and its part is given to the others and to the next one."""
    scene.end_process()
    seconds = scene.until(scene.is_shared_by_cpu, CPU_SHARE_MOST_S, "each has its part by CPU")
    return {"seconds": seconds} | _kept_by_cpu(scene)


def process_is_killed(scene):
    scene.kill_process()
    seconds = scene.until(scene.is_shared_by_cpu, CPU_SHARE_MOST_S, "each has its part by CPU")
    return {"seconds": seconds} | _kept_by_cpu(scene)


def enough_is_fed(scene):
    seconds = scene.until(lambda: scene.fed >= FED_LEAST, FED_MOST_S, f"{FED_LEAST:,} records")
    return {"seconds": seconds} | _shared(scene)


def _kept_by_cpu(scene):
    scene.rest(KEPT_S)
    shares = scene.shares_by_cpu()
    if not scene.is_shared_by_cpu():
        raise Disappointed(f"not kept: {shares}")
    return {"percent_of_leases_and_of_cpu": shares}


_FOLLOWING = (migrates_to_fleet, migrates_to_java, fleet_resumes, worker_is_killed,
              java_is_killed, java_joins_after_a_kill, enough_is_fed)  # fmt: skip
STORIES = {
    "2.7": (
        java_begins, fleet_cannot_work, java_2_gives_way, java_2_takes_over, fleet_resumes,
        java_is_killed,
    ),
    "3.1": (
        java_begins, fleet_joins, java_shard_splits, owners_merge, quiet, fleet_drains,
        fleet_resumes, migrates_to_fleet, migrates_to_java, fleet_resumes, worker_is_killed,
        fleet_is_killed, fleet_comes_back, java_is_killed,
        java_joins_after_a_kill,
    ),
    "3.5": (
        fleet_begins, java_joins, java_shard_splits, owners_merge, quiet, migrates_to_fleet,
        migrates_to_java, fleet_resumes, java_is_killed, java_joins_after_a_kill,
    ),
    "2.7-3.1": (
        java_2_begins, java_3_joins_as_a_kcl_2, java_2_ends, fleet_joins_the_upgrade,
        upgrade_completes, upgrade_is_rolled_back,
    ),
    "3.1-aborted": (
        java_begins, fleet_joins, aborted_on_the_way_to_the_fleet, aborted_on_the_way_to_java,
        migrates_to_fleet, migrates_to_java,
    ),
    "3.1-aborted-alone": (
        java_begins, fleet_joins, aborted_as_a_paused_fleet_is_resumed,
        aborted_while_no_process_of_the_fleet_lives, aborted_at_the_end_of_the_way_to_java,
        aborted_at_the_end_of_the_way_to_the_fleet, aborted_while_leases_of_a_dead_java_expire,
        aborted_while_there_is_no_java,
    ),
    "2.7-aborted": (
        java_begins, fleet_cannot_work, aborted_where_the_index_is_missing, aborted_beside_a_kcl_2,
    ),
    **dict.fromkeys(
        ("3.1-processes", "3.5-processes"),
        (java_begins, processes_join, rows_have_cpu, process_ends, process_is_killed),
    ),
    # A KCL 3.5 that begins alone has leases for a minute before it renews them.
    **dict.fromkeys(("3.1-one-consumer", "3.1-two-consumers"),
                    (java_begins, fleet_joins, *_FOLLOWING)),
    **dict.fromkeys(("3.5-one-consumer", "3.5-two-consumers"),
                    (fleet_begins, java_joins, *_FOLLOWING)),
}  # fmt: skip
