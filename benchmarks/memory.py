"""Resident memory over a long training or discovery: it must not grow with the updates.

    python benchmarks/memory.py train --updates 1000000 --after 10000
    python benchmarks/memory.py discover --hours 1 --after 100

Every sample is reported with its growth against the first, which is taken at `--after` updates;
the first line has the highest. A training logs every update and saves ten times as often as the
samples are taken.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

from measuring import report

import discorl

AGENT = {"num_envs": 2, "unroll": 2, "batch": 2, "replay": 4, "hidden": (4,)}
TASK = "catch:rows=3,columns=3"


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Sampler:
    """A tracker that samples the memory of this process at `after` updates, and each time
    another `every` have been made."""

    def __init__(self, after: int, every: int, hours: float) -> None:
        self.samples: list[dict] = []
        self._next, self._every = after, every
        self._start, self._hours = time.monotonic(), hours

    def __call__(self, rows: list[dict[str, float]]) -> None:
        update, seconds = int(rows[-1]["update"]), time.monotonic() - self._start
        if update >= self._next:
            self._next += self._every
            sample = {"update": update, "seconds": seconds, "resident_mb": resident_mb()}
            self.samples.append(sample)
        if seconds > self._hours * 3600:
            raise KeyboardInterrupt

    def rows(self) -> list[dict]:
        if not self.samples:
            raise SystemExit("no sample was taken; give a smaller --after, or more time or updates")
        first = self.samples[0]["resident_mb"]
        return [x | {"growth_percent": 100 * (x["resident_mb"] / first - 1)} for x in self.samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["train", "discover"])
    parser.add_argument("--updates", type=int, default=1_000_000, help="or meta-steps")
    parser.add_argument("--after", type=int, default=10_000, help="update of the first sample")
    parser.add_argument("--every", type=int, default=10_000, help="updates between samples")
    parser.add_argument("--hours", type=float, default=1e9, help="stop after so long")
    options = parser.parse_args()
    sampler = Sampler(options.after, options.every, options.hours)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            if options.command == "train":
                every = {"log_every": 1, "checkpoint_every": max(1, options.every // 10)}
                settings = AGENT | every | {"rule": "actor_critic", "env": TASK}
                discorl.train(updates=options.updates, out=out, track=sampler, **settings)
            else:
                settings = {"preset": "demo", "checkpoint_every": max(1, options.every // 10)}
                discorl.discover(meta_steps=options.updates, out=out, track=sampler, **settings)
        except KeyboardInterrupt:
            pass
    rows = sampler.rows()
    print(f"highest growth: {max(row['growth_percent'] for row in rows):.2f}%")
    report(rows)


if __name__ == "__main__":
    main()
