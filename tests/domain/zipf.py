"""A fleet of 64 shards on 8 slots whose loads follow Zipf's law, balanced run after run."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from shardfleet.domain.balance.by_count import WorkerView
from shardfleet.domain.balance.loads import Loads, smoothed
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.usage import Usage
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber

SHARDS, WORKERS = 64, 8
_TOTAL_KBPS = 8_000.0
_EVEN_BUSY = 300  # thousandths of its time that a worker is busy if all are even
_READ = ExtendedSequenceNumber("5")


@dataclass
class ZipfFleet:
    """Shards with their true loads, and who has them."""

    rates: list
    owners: list
    workers: list
    chance: object
    loads: Loads = field(default_factory=Loads)

    def run(self, planner, *, runs=10, noise=0.0):
        """Plan and carry out so many balancing runs on noisy measurements; return the moves."""
        moves = 0
        for _ in range(runs):
            leases = [
                Lease(
                    lease_key=f"{n:02}",
                    checkpoint=_READ,
                    lease_owner=self.owners[n],
                    throughput_kbps=rate * (1 + self.chance.gauss(0, noise)),
                )
                for n, rate in enumerate(self.rates)
            ]
            for a in planner(leases, self.workers).assignments:
                self.owners[int(a.lease.lease_key)] = a.worker_id
                moves += 1
        return moves

    def run_on_use(self, planner, *, runs, noise):
        """
        Plan and carry out so many runs on what workers tell that they use; return the moves.

        Three turns a run, as in the fleet; what a worker tells in each is off by ``noise``, and one
        in forty times it tells nothing.
        """
        moves, average = 0, sum(self.rates) / WORKERS
        for turn in range(3 * runs):
            leases = [
                Lease(
                    lease_key=f"{n:02}",
                    checkpoint=_READ,
                    lease_owner=self.owners[n],
                    throughput_kbps=rate,
                )
                for n, rate in enumerate(self.rates)
            ]
            told = {}
            for w in self.workers:
                held = sum(le.throughput_kbps for le in leases if le.lease_owner == w.worker_id)
                used = _EVEN_BUSY * held / average * (1 + self.chance.gauss(0, noise))
                tells = self.chance.randrange(40) > 0
                told[w.worker_id] = Usage(busy=min(1_000, round(used))) if tells else Usage()
            self.loads = smoothed(self.loads, leases, told)
            if turn % 3 == 0:
                workers = [
                    replace(w, utilisation=self.loads.workers[w.worker_id].usage.utilisation())
                    for w in self.workers
                ]
                for a in planner(self.loads.of_leases(leases), workers).assignments:
                    self.owners[int(a.lease.lease_key)] = a.worker_id
                    moves += 1
        return moves


def zipf_rates(exponent):
    """Return the shards' loads, KB/s, the heaviest first."""
    weights = [rank**-exponent for rank in range(1, SHARDS + 1)]
    return [_TOTAL_KBPS * weight / sum(weights) for weight in weights]


def zipf_fleet(exponent, *, start, chance, leases_most=2 * WORKERS):
    """Build a fleet: shards dealt in turn, the heaviest together, or shuffled."""
    ranks = list(range(SHARDS))
    if start == "shuffled":
        chance.shuffle(ranks)
    owners = [""] * SHARDS
    for place, rank in enumerate(ranks):
        worker = place // WORKERS if start == "heaviest together" else place % WORKERS
        owners[rank] = f"w{worker}"
    workers = [WorkerView(worker_id=f"w{n}", leases_most=leases_most) for n in range(WORKERS)]
    return ZipfFleet(zipf_rates(exponent), owners, workers, chance)


def most_loaded(fleet):
    """Return the heaviest worker's load as a part of max(average, heaviest shard)."""
    loads = dict.fromkeys((f"w{n}" for n in range(WORKERS)), 0.0)
    for owner, rate in zip(fleet.owners, fleet.rates, strict=True):
        loads[owner] += rate
    return max(loads.values()) / max(sum(fleet.rates) / WORKERS, *fleet.rates)
