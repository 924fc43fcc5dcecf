"""Environments and rules that users might write, misbehaving in various ways."""

import random
import textwrap
from pathlib import Path

from trials import Campaign

FEW = """
    --num-envs 2 --unroll 4 --batch 2 --replay-fraction 0 --hidden 4 --updates 30
    --checkpoint-every 2
""".split()  # noqa: SIM905

# Each is what a step does in place of returning what it should, in an environment on the host.
HOST = {
    "raises": "raise ValueError('boom')",
    "exits": "import sys; sys.exit(0)",
    "exits loudly": "import sys; sys.exit('bye')",
    "ends its process": "import os; os._exit(0)",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "returns nothing": "return None",
    "returns NaN": "return np.full(3, np.nan, np.float32), 0.0, False, False, {}",
    "returns an infinite reward": "return np.zeros(3, np.float32), np.inf, False, False, {}",
    "returns a text": "return 'hello', 0.0, False, False, {}",
    "returns another shape": "return np.zeros(4, np.float32), 0.0, False, False, {}",
    "returns objects": "return np.array([object()] * 3), 0.0, False, False, {}",
    "returns a reward of text": "return np.zeros(3, np.float32), 'a', False, False, {}",
    "returns too little": "return np.zeros(3, np.float32), 0.0",
    "recurses": "return self.step(action)",
    "exhausts memory": "return np.zeros(10**13), 0.0, False, False, {}",
    "raises what is no Exception": "raise GeneratorExit",
    "interrupts": "raise KeyboardInterrupt",
}
RESET = {
    "raises at the start": "raise OSError('no display')",
    "exits at the start": "import sys; sys.exit(3)",
    "starts with another shape": "return np.zeros(7, np.float32)",
}
DECLARED = {
    "declares no actions": ("num_actions = 0", ""),
    "declares a fraction of an action": ("num_actions = 1.5", ""),
    "declares a length of zero": ("", "return jax.ShapeDtypeStruct((0,), np.float32)"),
    "declares nothing": ("", "return None"),
    "declares by raising": ("", "raise RuntimeError('no')"),
    "declares a billion actions": ("num_actions = 10**9", ""),
}
ENVIRONMENT = """
import jax, numpy as np
from discorl.envs.host import HostEnvironment
from discorl.envs.host.base import seeds_from
from discorl.envs.host.workers import vector_of

class One:
    def __init__(self):
        self.time = 0
    def reset(self, seed):
        {reset}
        return np.zeros(3, np.float32)
    def step(self, action):
        self.time += 1
        if self.time > 20:
            {step}
        print("a word")
        return np.zeros(3, np.float32), 0.0, self.time % 5 == 0, False, {{}}
    def render(self):
        return None
    def close(self):
        {close}
        return

class Task(HostEnvironment):
    name = "mine"
    num_actions = 2
    timeout = 120.0
    {declared}
    def __init__(self, workers=0):
        self.workers = workers
    @property
    def observation(self):
        {observation}
        return jax.ShapeDtypeStruct((3,), np.float32)
    def start(self, count, seed, *, render=False):
        return vector_of(One, seeds_from(seed, count), observation=self.observation,
                         workers=self.workers)

def make(workers: int = 0):
    return Task(workers)
"""
NATIVE = """
import dataclasses, jax, jax.numpy as jnp, numpy as np
from discorl.envs import Catch

def boom(x):
    raise ValueError("boom")

@dataclasses.dataclass(frozen=True)
class Mine(Catch):
    rows: int = 3
    columns: int = 3
    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        {body}
        return state, step
"""
NATIVE_BODIES = {
    "a callback raises": "like = jax.ShapeDtypeStruct((), jnp.float32); "
    "step = dataclasses.replace(step, reward=jax.pure_callback(boom, like, step.reward))",
    "tracing raises": "raise ValueError('boom')",
    "tracing exits": "import sys; sys.exit(0)",
    "another shape": "step = dataclasses.replace(step, observation=jnp.zeros(7))",
    "another dtype": "step = dataclasses.replace(step, reward=jnp.int32(3))",
    "NaN everywhere": "step = dataclasses.replace(step, observation=step.observation * jnp.nan)",
}
RULE = """
import jax.numpy as jnp
from discorl.rules import REGISTRY
{top}

class Mine(REGISTRY["actor_critic"]):
    def outputs(self, num_actions):
        {outputs}
        return super().outputs(num_actions)
    def loss(self, *arguments, **options):
        {loss}
        return super().loss(*arguments, **options)
"""
RULES = {
    "import exits": {"top": "import sys; sys.exit(0)"},
    "import raises": {"top": "raise RuntimeError('no')"},
    "import is no Python": {"top": "def ("},
    "outputs raise": {"outputs": "raise ValueError('boom')"},
    "outputs exit": {"outputs": "import sys; sys.exit(0)"},
    "outputs are nothing": {"outputs": "return None"},
    "loss raises": {"loss": "raise ValueError('boom')"},
    "loss is nothing": {"loss": "return None"},
    "loss is a text": {"loss": "return 'hello'"},
    "loss is an array": {"loss": "return jnp.zeros(3)"},
}


def user_code(campaign: Campaign, generator: random.Random, count: int) -> None:
    """Trains with each; with workers, which end with their process, every second time."""
    cases = list(_cases())
    generator.shuffle(cases)
    for name, files, arguments in (cases * (1 + count // len(cases)))[:count]:
        folder = campaign.new_folder()
        for file, text in files.items():
            (folder / file).write_text(textwrap.dedent(text))
        # Where every loss is NaN, every seed is lost, which is a failure, too.
        kind = f"user code: {name}"
        outcome = campaign.command(kind, arguments, "refused", cwd=folder, timeout=240)
        problem = None
        if "--json" in arguments and outcome.out.strip():
            problem = None if outcome.out.lstrip().startswith("{") else "spoiled --json"
        if problem:
            campaign.count("user code: output", problem, name)


def _cases():
    blank = {"reset": "pass", "step": "pass", "close": "pass", "declared": "", "observation": ""}
    for workers in (0, 2):
        env = f"my_task:make,workers={workers}"
        train = ["train", "--rule", "actor_critic", "--env", env, *FEW, "--out", "run", "--json"]
        for name, step in HOST.items():
            if workers or name not in ("ends its process", "is killed", "interrupts"):
                text = ENVIRONMENT.format(**blank | {"step": step})
                yield f"{name}, {workers} workers", {"my_task.py": text}, train
        for name, reset in RESET.items():
            text = ENVIRONMENT.format(**blank | {"reset": reset})
            yield f"{name}, {workers} workers", {"my_task.py": text}, train
    train = ["train", "--rule", "actor_critic", "--env", "my_task:make", *FEW, "--out", "run"]
    for name, (declared, observation) in DECLARED.items():
        text = ENVIRONMENT.format(**blank | {"declared": declared, "observation": observation})
        yield name, {"my_task.py": text}, train
    train = ["train", "--rule", "actor_critic", "--env", "my_task:Mine", *FEW, "--out", "run"]
    for name, body in NATIVE_BODIES.items():
        yield name, {"my_task.py": NATIVE.format(body=body)}, train
    train = ["train", "--rule", "my_rule:Mine", "--env", "catch:rows=3,columns=3", *FEW]
    for name, parts in RULES.items():
        text = RULE.format(**{"top": "", "outputs": "pass", "loss": "pass"} | parts)
        yield f"rule: {name}", {"my_rule.py": text}, [*train, "--out", "run"]


def special_files(campaign: Campaign, generator: random.Random, count: int) -> None:
    """Targets that are no regular files: FIFOs, links and, never as root, devices.

    Root, who would replace a device, tries them as nobody, if everybody can read the package.
    """
    import os

    import discorl

    for number in generator.sample(range(count), count):
        folder = campaign.new_folder()
        kept = folder / "kept.npz"
        kept.write_bytes(b"mine")
        os.mkfifo(folder / "fifo.npz")
        (folder / "link.npz").symlink_to(kept)
        (folder / "folder.npz").mkdir()
        target = ("fifo.npz", "link.npz", "folder.npz")[number % 3]
        command = ["rules", "export", "discorl5", target]
        if number % 2:
            command = ["rules", "show", "./" + target]
        campaign.command("special files", command, "refused", cwd=folder, timeout=60)
        unharmed = kept.read_bytes() == b"mine" and Path(folder / "link.npz").is_symlink()
        if not unharmed:
            campaign.count("special files", "was replaced or followed", target)
    package = Path(discorl.__file__).resolve().parent
    readable = all(path.stat().st_mode & 0o005 == 0o005 for path in (package, *package.parents))
    as_root = os.geteuid() == 0
    for device in ("/dev/null", "/dev/zero", "/dev/full") if readable or not as_root else ():
        command = ["rules", "export", "discorl5", device]
        campaign.command("special files", command, "refused: device", timeout=60, nobody=as_root)
