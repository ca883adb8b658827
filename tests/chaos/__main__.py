"""Chaos on three nodes, with real Ray and a real PostgreSQL.

    python -m tests.chaos --rounds 30 --seed 7

In each round one thing fails while 30 sessions work. The same seed has the same faults in the same
order; what the machine makes of them differs. Exits with 1 when anything was wrong, and keeps the
folder with all logs then.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import statistics
import sys
import time
from typing import TYPE_CHECKING, Final

from tests.chaos.rounds import Campaign, Round, left
from tests.chaos.site import NODES, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS: Final = ("kill node", "stop database", "kill machine", "pause node", "drain node")
HEAD: Final = "round  kind           node   settled  askers          live  lost  events  wrong"


async def campaign(
    site: Site, kinds: Sequence[str], seed: int, *, sessions: int = 30
) -> list[Round]:
    """Rounds of these kinds, and the end of all as the last."""
    chance = random.Random(seed)
    rounds: list[Round] = []
    print(HEAD, flush=True)
    last = Round(len(kinds) + 1, "end")
    async with Campaign(site, chance, sessions=sessions) as running:
        for number, kind in enumerate(kinds, 1):
            rounds.append(await running.run(number, kind))
            _tell(rounds[-1])
        last.wrong += await running.finish()
        last.events = sum(each.events for each in rounds)
        for error, count in running.record.errors.most_common():
            print(f"  asked again {count:5} times: {error}", flush=True)
    last.wrong += await asyncio.to_thread(site.end_nodes)
    # What a lost machine has of projects that were given away stays there until it starts again.
    lost = {each.node for each in rounds if each.kind in {"kill machine", "pause node"}}
    last.wrong += left(site, lost)
    rounds.append(last)
    _tell(last)
    return rounds


def _tell(each: Round) -> None:
    settled = "-" if each.settled is None else f"{each.settled:.1f} s"
    askers = " ".join(f"{seconds:.2f}" for seconds in each.askers) or "-"
    print(
        f"{each.number:5}  {each.kind:13}  {each.node:5}  {settled:>7}  {askers:14}"
        f"  {each.sessions:4}  {each.lost:4}  {each.events:6}  {len(each.wrong):5}",
        flush=True,
    )
    for line in each.wrong[:20]:
        print(f"       {line}", flush=True)


def kinds_of(rounds: int, chance: random.Random, only: Sequence[str] = KINDS) -> list[str]:
    """Kinds of so many rounds: each equally often, in a random order."""
    kinds: list[str] = []
    while len(kinds) < rounds:
        kinds += chance.sample(list(only), len(only))
    return kinds[:rounds]


def _summary(rounds: Sequence[Round]) -> None:
    """Print what came of each kind."""
    print("kind           rounds  settled median, most  askers median, most  lost   events  wrong")
    for kind in dict.fromkeys(each.kind for each in rounds):
        of_kind = [each for each in rounds if each.kind == kind]
        settled = _middle([each.settled for each in of_kind if each.settled is not None])
        askers = _middle([seconds for each in of_kind for seconds in each.askers])
        print(
            f"{kind:13}  {len(of_kind):6}  {settled:>20}  {askers:>19}"
            f"  {sum(each.lost for each in of_kind):4}  {sum(each.events for each in of_kind):7}"
            f"  {sum(len(each.wrong) for each in of_kind):5}"
        )


def _middle(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} s, {max(seconds):.2f} s" if seconds else "-"


def _askers(rounds: Sequence[Round], kinds: Sequence[str]) -> str:
    found = [seconds for each in rounds if each.kind in kinds for seconds in each.askers]
    if not found:
        return "-"
    return f"{statistics.median(found):.2f} s, worst {max(found):.2f} s, of {len(found)}"


def main() -> int:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which, separated by commas")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    given = parser.parse_args()
    kinds = kinds_of(given.rounds, random.Random(given.seed), given.kinds.split(","))
    print(f"{given.rounds} rounds, {given.sessions} sessions, seed {given.seed}", flush=True)
    began = time.monotonic()
    # As an interruption, so that everything that was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    site = Site()
    site.keep = True
    logging.getLogger("oubliette").addHandler(logging.FileHandler(site.base / "clients.log"))
    with site:
        print(f"{len(NODES)} nodes in {site.base}, {time.monotonic() - began:.0f} s", flush=True)
        rounds = asyncio.run(campaign(site, kinds, given.seed, sessions=given.sessions))
        wrong = sum(len(each.wrong) for each in rounds)
        site.keep = bool(wrong) or given.keep
    _summary(rounds[:-1])
    print(
        f"{len(kinds)} rounds, {rounds[-1].events} events, {wrong} wrong,"
        f" {time.monotonic() - began:.0f} s; an asker knew of a node after"
        f" {_askers(rounds, ['kill node'])}; of a machine after"
        f" {_askers(rounds, ['kill machine', 'pause node'])}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
