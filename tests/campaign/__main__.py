"""The campaign: thousands of attacks on the command line and on what it leaves on disk.

    python tests/campaign --seed 0 --share 1.0
    python tests/campaign --only "user code" "kills of train"

Everything happens in a temporary folder. The same seed gives the same attacks; kills and signals
come at moments that depend on the machine.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ["JAX_PLATFORMS"] = "cpu"

# Imported here, once: trials are forks of this process.
from command_lines import command_lines, toml_files
from damaged_files import damaged_files
from jax._src import xla_bridge
from kills import kills, signals
from trials import Campaign
from user_code import special_files, user_code

import discorl.cli.compare
import discorl.cli.discover
import discorl.cli.envs
import discorl.cli.evaluate
import discorl.cli.inspect
import discorl.cli.launch
import discorl.cli.play
import discorl.cli.report
import discorl.cli.rules
import discorl.cli.running
import discorl.cli.sweep
import discorl.cli.train
import discorl.cli.verify  # noqa: F401

SIZES = {
    "command lines": 1000,
    "TOML files": 300,
    "damaged files": 1000,
    "special files": 30,
    "user code": 60,
    "signals": 20,
    "kills of train": 60,
    "kills of discover": 25,
    "kills of compare": 15,
}


def main() -> None:
    """Runs the parts that are asked for; the exit status says whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the full size")
    parser.add_argument("--only", nargs="*", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    if xla_bridge.backends_are_initialized():
        sys.exit("an import has started JAX, which must not be forked")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="discorl-campaign-", ignore_cleanup_errors=True
    ) as folder:
        os.environ |= {"DISCORL_CACHE": f"{folder}/cache", "HOME": folder}
        os.environ.pop("DISCORL_RULES", None)
        Path(folder).chmod(0o755)  # for trials as nobody
        campaign = Campaign(Path(folder))
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for name in options.only:
                count = max(1, round(SIZES[name] * options.share))
                PARTS[name](campaign, random.Random(f"{options.seed} {name}"), count)
                print(f"{name}: done after {time.monotonic() - start:.0f} s", flush=True)
        except KeyboardInterrupt:
            print("stopped before its end", flush=True)
        _report(campaign)
    sys.exit(bool(campaign.failures))


PARTS = {
    "command lines": command_lines,
    "TOML files": toml_files,
    "damaged files": damaged_files,
    "special files": special_files,
    "user code": user_code,
    "signals": signals,
    **{f"kills of {command}": kills(command) for command in ("train", "discover", "compare")},
}


def _report(campaign: Campaign) -> None:
    failed = [failure.partition(": ")[0] for failure in campaign.failures]
    groups: dict[str, int] = {}
    for kind, count in campaign.tries.items():
        group = kind.partition(":")[0]
        groups[group] = groups.get(group, 0) + count
    for group, count in groups.items():
        wrong = sum(kind.partition(":")[0] == group for kind in failed)
        print(f"{group}: {count} tries, {wrong} failures")
    print(f"in all: {campaign.tries.total()} tries, {len(campaign.failures)} failures")


if __name__ == "__main__":
    main()
