"""What is known of each family's members: what tells splits apart, ranges, and records."""

import dataclasses
import itertools

import numpy as np
from family_samples import ALL, MANY

from discorl.envs.families.bandit import Bandit
from discorl.envs.families.base import Family
from discorl.envs.families.chain import Chain
from discorl.envs.families.cliff import Cliff
from discorl.envs.families.deep_sea import DeepSea
from discorl.envs.families.four_rooms import FourRooms
from discorl.envs.families.gambler import Gambler
from discorl.envs.families.grid import Grid
from discorl.envs.families.hill import Hill
from discorl.envs.families.inventory import Inventory
from discorl.envs.families.key_door import KeyDoor
from discorl.envs.families.memory import Memory
from discorl.envs.families.offers import Offers
from discorl.envs.families.queues import Queues
from discorl.envs.families.river_swim import RiverSwim
from discorl.envs.families.tabular import Tabular
from discorl.envs.families.windy_catch import WindyCatch
from discorl.types.specs import Range

# The same sizes, so that compiled programs serve both, and other members.
VARIED = {
    "bandit": {"best": Range(2.0, 2.0), "others": Range(-3.0, 1.9), "noise": Range(0.0, 0.0)},
    "chain": {"goal": Range(3.0, 4.0), "temptation": Range(0.0, 0.1), "fatal": 1.0},
    "cliff": {"gust": Range(0.5, 0.9), "penalty": Range(0.0, 0.0)},
    "deep_sea": {
        "goal": Range(2.0, 3.0),
        "cost": Range(0.2, 0.4),
        "slippery": 1.0,
        "slip": Range(0.1, 0.5),
    },
    "four_rooms": {"reward": Range(2.0, 3.0), "slip": Range(0.5, 0.9)},
    "gambler": {"good": Range(0.8, 0.9), "poor": Range(0.5, 0.6)},
    "grid": {
        "reward": Range(0.1, 5.0),
        "respawn": Range(0.9, 1.0),
        "bad": 1.0,
        "terminal": 0.0,
        "returning": 1.0,
    },
    "hill": {"power": Range(0.8, 1.0), "gravity": Range(0.0, 0.3), "cost": Range(4.0, 5.0)},
    "inventory": {
        "surge": Range(0.6, 0.9),
        "price": Range(1.0, 2.0),
        "cost": Range(0.0, 0.2),
        "holding": Range(0.0, 0.01),
    },
    "key_door": {"reward": Range(2.0, 3.0), "hinted": 1.0, "hint": Range(0.5, 1.0)},
    "memory": {"delay": Range(3, 5)},
    "offers": {
        "best": Range(2.0, 3.0),
        "others": Range(-1.0, -0.5),
        "cost": Range(0.1, 0.3),
        "fee": Range(0.3, 0.6),
    },
    "queues": {
        "arrival": Range(0.6, 0.9),
        "service": Range(0.2, 0.4),
        "cost": Range(0.1, 0.3),
    },
    "river_swim": {
        "current": Range(0.7, 0.9),
        "source": Range(1.0, 2.0),
        "mouth": Range(0.2, 0.5),
    },
    "tabular": {"rewarded": 0.0, "hazardous": 1.0, "hazard": Range(0.8, 1.0)},
    "windy_catch": {"wind": Range(0.4, 1.0), "slip": Range(0.5, 0.9), "width": Range(2, 2)},
}


def identity(family: Family, member) -> tuple:
    """What a family's docstring says must differ between the splits."""
    match family:
        case Bandit():
            return tuple(member.means.argmax(-1))
        case Chain():
            return tuple(member.correct[: member.places])
        case Cliff():
            return tuple(member.heights)
        case DeepSea():
            return tuple(np.diagonal(member.right)[: member.depth])
        case FourRooms():
            return *member.doors.tolist(), int(member.goal)
        case Gambler():
            return tuple(member.stakes)
        case Grid():
            return tuple(sorted(member.squares))
        case Hill():
            return (int(member.bottom),)
        case Inventory():
            return tuple(member.demands)
        case KeyDoor():
            return int(member.key), int(member.door), int(member.goal)
        case Memory():
            return tuple(member.answers)
        case Offers():
            return tuple(member.tickets)
        case Queues():
            return tuple(member.rooms)
        case RiverSwim():
            return int(member.places), *member.rapids.tolist()
        case Tabular():
            return tuple(np.sort(member.successors, axis=-1).ravel())
        case WindyCatch():
            return int(member.wind), int(member.slipperiness), int(member.width)
    raise AssertionError(family)


def is_held_out(family: Family, member) -> bool:
    """Which split the family's docstring says that a member belongs to."""
    match family:
        case FourRooms():
            mark = black(family.size, [*member.doors, member.goal])
        case Grid():
            mark = black(family.size, member.squares)
        case KeyDoor():
            mark = black(family.columns, [member.key, member.door, member.goal])
        case Memory():
            mark = sum(x > y for x, y in itertools.combinations(member.answers, 2))
        case RiverSwim():
            mark = sum(member.rapids[: member.places])
        case _:
            mark = sum(identity(family, member))
    return mark % 2 == 1


def black(columns: int, squares) -> int:
    """How many of the squares are black on a chess board."""
    return sum((square // columns + square % columns) % 2 for square in squares)


def varied(name: str) -> Family:
    return dataclasses.replace(ALL[name], **VARIED[name])


def spans(name: str, members) -> list[tuple]:
    """What was drawn, [MANY, ...], with the least and the most that it may be."""
    match name:
        case "bandit":
            best = np.max(members.means, axis=-1)
            others = np.sort(members.means, axis=-1)[..., :-1]
            return [(best, 2, 2), (others, -3, 1.9), (members.deviation, 0, 0)]
        case "chain":
            share = members.temptations / (0.3 * members.goal[:, None])
            return [(members.goal, 3, 4), (share, 0, 0.1), (members.fatal, 1, 1)]
        case "cliff":
            return [(members.gust, 0.5, 0.9), (members.penalty, 0, 0)]
        case "deep_sea":
            cost = members.cost * members.depth / members.goal
            return [(members.goal, 2, 3), (cost, 0.2, 0.4), (members.slip, 0.1, 0.5)]
        case "four_rooms":
            return [(members.reward, 2, 3), (members.slip, 0.5, 0.9)]
        case "gambler":
            chances = np.sort(members.chances, axis=-1)
            return [(chances[:, -1], 0.8, 0.9), (chances[:, :-1], 0.5, 0.6)]
        case "grid":
            sizes = np.abs(members.rewards)
            flags = [(members.rewards[:, 1:] < 0, 1, 1), (members.terminal, 0, 0)]
            return [(sizes, 0.1, 5), (members.respawn, 0.9, 1), *flags]
        case "hill":
            return [(members.power, 0.8, 1), (members.gravity, 0, 0.3), (members.cost, 4, 5)]
        case "inventory":
            cost, holding = members.cost / members.price, members.holding / members.price
            amounts = [(members.price, 1, 2), (cost, 0, 0.2), (holding, 0, 0.01)]
            return [(members.surge, 0.6, 0.9), *amounts]
        case "key_door":
            return [(members.reward, 2, 3), (members.hint / members.reward, 0.5, 1)]
        case "memory":
            return [(members.delay, 3, 5)]
        case "offers":
            worths = np.sort(members.worths, axis=-1)
            best, others = worths[:, -1], worths[:, :-1] / worths[:, -1:]
            cost, fee = members.cost / best, members.fee / best
            return [(best, 2, 3), (others, -1, -0.5), (cost, 0.1, 0.3), (fee, 0.3, 0.6)]
        case "queues":
            arrival, service = members.arrivals, members.services
            return [(arrival, 0.6, 0.9), (service, 0.2, 0.4), (members.costs, 0.1, 0.3)]
        case "river_swim":
            mouth = members.mouth / members.source
            return [(members.current, 0.7, 0.9), (members.source, 1, 2), (mouth, 0.2, 0.5)]
        case "tabular":
            # The one that pays for certain is apart.
            return [(members.rewards.reshape(MANY, -1)[:, 1:], 0, 0), (members.hazards, 0.8, 1)]
        case "windy_catch":
            slip = members.slipperiness
            return [(np.abs(members.wind), 2, 5), (slip, 5, 9), (members.width, 2, 2)]
    raise AssertionError(name)


# Of every parameter of the members of `ALL`: the sum of all numbers, each times its place. Rules
# were discovered on such members, so what a seed draws must stay the same.
RECORDED = {
    "bandit": {
        "train": [57399.8498, 5085.8505],
        "held_out": [81948.2722, 4909.46213],
    },
    "chain": {
        "train": [706607.0, 92587.0, 20217.4833, 421.197579, 74971.8112, 10665.0, 65129.0],
        "held_out": [735056.0, 91163.0, 19979.6625, 416.242979, 72412.9966, 10439.0, 64242.0],
    },
    "cliff": {
        "train": [714804.0, 1934.39849, 20217.4833, 1001106.0],
        "held_out": [734513.0, 1952.81114, 19979.6625, 1001093.0],
    },
    "deep_sea": {
        "train": [12203594.0, 81276.0, 20217.4833, 53.0904313, 620.717061],
        "held_out": [12590867.0, 81508.0, 19979.6625, 51.3900664, 577.828713],
    },
    "four_rooms": {
        "train": [6473775.0, 386855.0, 340445.0, 20221.701, 2807.06031, 800986.0],
        "held_out": [6498131.0, 388571.0, 325299.0, 19868.9243, 2894.66855, 801008.0],
    },
    "gambler": {
        "train": [451526.0, 74710.8743, 58729.0],
        "held_out": [455851.0, 73604.5301, 59633.0],
    },
    "grid": {
        "train": [2298699.0, 1400884.0, 31970.9538, 41043.0, 4055.1087, 1001084.0],
        "held_out": [2451324.0, 1394007.0, 36567.0539, 40069.0, 4817.90963, 1001115.0],
    },
    "hill": {
        "train": [210448.0, 7442.99806, 17120.2449, 33493.5935, 180293.0],
        "held_out": [197986.0, 7466.01388, 17048.8986, 32541.0962, 180304.0],
    },
    "inventory": {
        "train": [165282.0, 5878.79701, 2021.74844, 1020.29645, 242.467721, 180326.0],
        "held_out": [177345.0, 5915.62229, 1997.96636, 1001.25365, 243.311696, 180322.0],
    },
    "key_door": {
        "train": [
            480208.0,
            88814.0,
            78021.0,
            107489.0,
            142811.0,
            19406.8673,
            1074.46267,
            1001061.0,
        ],
        "held_out": [
            480222.0,
            93691.0,
            88464.0,
            106916.0,
            129790.0,
            19698.8948,
            1097.81369,
            1001113.0,
        ],
    },
    "memory": {
        "train": [180298.0, 68279.0],
        "held_out": [180308.0, 68206.0],
    },
    "offers": {
        "train": [348376.0, 86420.6225, 781.363739, 2819.63846, 180301.0],
        "held_out": [355465.0, 79169.1989, 782.028871, 2727.61923, 180283.0],
    },
    "queues": {
        "train": [232870.0, 11453.3157, 64123.5615, 2258.31825, 40108.0],
        "held_out": [243477.0, 11893.582, 63191.0698, 2116.16153, 40111.0],
    },
    "river_swim": {
        "train": [88108.0, 274221.0, 6076.9934, 2022.17021, 105.374346, 11298.0],
        "held_out": [87316.0, 282097.0, 5981.86509, 1986.89253, 105.837152, 12122.0],
    },
    "tabular": {
        "train": [15770388.0, 4000991.4, 251724.716, 30916.3874, -239461.12],
        "held_out": [16346402.0, 4001003.12, 165931.622, 40199.2767, 129287.011],
    },
    "windy_catch": {
        "train": [5142.0, 28013.0, 39019.0, 9817.0],
        "held_out": [5923.0, 29437.0, 38012.0, 9991.0],
    },
}
