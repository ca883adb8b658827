"""ClusterHomes, which knows the homes of projects and chooses one for those that have none.

What asks the database raises StorageUnavailable if it does not answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.actors.ports.messages import node_mark
from oubliette.config.container_options import BASE
from oubliette.errors import Conflict, Unavailable
from oubliette.runtime.containers.base import MIB
from oubliette.runtime.containers.options import options_of, options_of_new
from oubliette.runtime.store.postgres.cluster import node_room, nodes, placements
from oubliette.runtime.store.postgres.cluster.node_choice import choose_node, lacks
from oubliette.runtime.store.postgres.cluster.node_records import ProjectNeeds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oubliette.config.container_options import ContainerOptions
    from oubliette.config.schema import Config
    from oubliette.kit import Ref, System
    from oubliette.node.membership import Membership
    from oubliette.records import Project
    from oubliette.runtime.store.postgres.cluster.node_records import NodeRecord
    from oubliette.runtime.store.reader import Reader

KNOWN_HOMES: Final = 10_000
"""Maximum of projects whose home is remembered; a wrong one is corrected by its answer."""

RENEWING_PAUSES: Final = (0.5, 1.0, 2.0)
"""Seconds between looks at the nodes while those that run have no lease: after an outage of the
database all are about to renew it."""


class ClusterHomes:
    """Homes of projects, as one node knows them; the database decides."""

    def __init__(
        self, config: Config, membership: Membership, system: System, reader: Reader
    ) -> None:
        self.on_taken: Callable[[], object] = lambda: None
        """Called when projects of a node that is gone were taken over."""
        self._config = config
        self._membership = membership
        self._system = system
        self._reader = reader
        self._known: dict[str, str] = {}
        """Home of projects on other nodes."""
        self._here: set[str] = set()
        """Projects that have their home on this node for as long as it has its lease."""
        self._lost: dict[str, str] = {}
        """Session id → its machine, which is gone; they are to be ended here."""
        self._taken: set[str] = set()
        """Projects that were taken over, and may need what this node does not have."""
        self._marks: dict[str, str] = {}
        """Nodes by the mark in the names of their open ports."""
        self._marking = asyncio.Lock()
        self._taking = asyncio.Lock()
        """Held while projects are taken over, and while a home is looked up."""

    # ------------------------------------------------------------ for calls of tools
    @property
    def name(self) -> str:
        return self._membership.name

    @property
    def system(self) -> System:
        return self._system

    def ref(self, node: str, name: str) -> Ref:
        return self._system.ref(f"{node}!{name}")

    def forget(self, project_id: str) -> None:
        self._known.pop(project_id, None)

    def forget_homes_on(self, node: str) -> None:
        """Look the homes up again of all projects that were on a node that is gone."""
        for project_id in [known for known, home in self._known.items() if home == node]:
            del self._known[project_id]

    async def home(self, project_id: str, *, needed: bool) -> str | None:
        """Return the node on which a project lives; None: this one, or none.

        Raises:
            Unavailable: its machine is lost and its sessions are not ended yet, or no node can
                take it.
        """
        if project_id in self._here:
            return None
        node = self._known.get(project_id)
        if node is None:
            async with self._taking:  # otherwise its sessions may begin to recover as those of here
                node = await self._look_up(project_id, needed=needed)
        return None if node in {None, self.name} else node

    async def _look_up(self, project_id: str, *, needed: bool) -> str | None:
        run = self._membership.control.run
        found = await run(placements.home_of, project_id)
        if found is not None and found.state != "gone":
            node = found.node
        elif needed:
            needs = await self._needs(project_id)
            try:
                node = await run(node_room.place_anywhere, project_id, needs)
            except Conflict as lives:
                raise Unavailable(
                    f"the machine of project {project_id} is gone, its sessions are being ended",
                    hint="try again in some seconds",
                ) from lives
        else:
            return None
        self._note(project_id, node)
        return node

    async def home_of_new(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the node on which to create a project; None: this one.

        Raises:
            Unavailable: no node can take it; names the reason of each.
        """
        found = await self._nodes()
        needs = needs_of_new(self._config, arguments)
        if not any(needs.container_type in each.offer.container_types for each in found):
            needs = msgspec.structs.replace(needs, container_type=None)  # its handler refuses it
        node = choose_node(needs, found).name
        return None if node == self.name else node

    async def node_of_port(self, mark: str) -> str | None:
        """Return the node with this mark in the names of its open ports; None: no other one."""
        if mark not in self._marks:
            async with self._marking:  # of many requests for what is nowhere one asks at a time
                if mark not in self._marks:
                    found = await self._membership.control.run(nodes.all_nodes)
                    self._marks = {node_mark(each.name): each.name for each in found}
        node = self._marks.get(mark)
        return None if node == self.name else node

    async def _nodes(self) -> list[NodeRecord]:
        """Return the nodes with their room; after an outage, once one has its lease again."""
        run = self._membership.control.run
        for pause in RENEWING_PAUSES:
            found = await run(node_room.nodes_with_room)
            running = [each for each in found if each.state == "running"]
            if not running or any(each.lease_seconds > 0 for each in running):
                return found
            await asyncio.sleep(pause)
        return await run(node_room.nodes_with_room)

    async def _needs(self, project_id: str) -> ProjectNeeds:
        project = await self._reader.project(project_id)
        deleted = project is not None and project.deleted_at is not None
        return needs_of(self._config, None if deleted else project)

    def _note(self, project_id: str, node: str) -> None:
        if node == self.name:
            self._here.add(project_id)
            self._known.pop(project_id, None)
            return
        if len(self._known) >= KNOWN_HOMES:
            self._known.pop(next(iter(self._known)))
        self._known[project_id] = node

    # ------------------------------------------------------------ for the projects of this node
    @property
    def draining(self) -> bool:
        return self._membership.draining

    async def projects_here(self) -> frozenset[str]:
        """The projects that have their home on this node."""
        found = await self._membership.control.run(placements.homes_on, self.name)
        self._here = {each.project_id for each in found}
        return frozenset(self._here)

    async def elsewhere(self, project_id: str) -> bool:
        """Whether a project has its home on another node."""
        if project_id in self._here:
            return False
        found = await self._membership.control.run(placements.home_of, project_id)
        return found is not None and found.node != self.name

    async def place_here(self, project: Project) -> None:
        """Give a new project its home on this node.

        Raises:
            NotHere: this node takes no projects, or has no room any more.
        """
        needs = needs_of(self._config, project)
        await self._membership.control.run(node_room.place_on, project.id, needs, self.name)
        self._here.add(project.id)

    async def leave(self, project_id: str) -> None:
        """Delete the placement of a project that is deleted."""
        self._here.discard(project_id)
        await self._membership.control.run(placements.forget_placement, project_id)

    async def is_here(self, project_id: str) -> bool:
        """Whether a project has its home on this node."""
        found = await self._membership.control.run(placements.home_of, project_id)
        return found is not None and found.node == self.name

    async def choose_for(self, project_id: str) -> str:
        """The other node with the most room for a project of this node.

        Raises:
            Unavailable: no other node can take it; names the reason of each.
        """
        found = await self._membership.control.run(node_room.nodes_with_room)
        needs = await self._needs(project_id)
        return choose_node(needs, [each for each in found if each.name != self.name]).name

    async def hand_over(self, project_id: str, node: str) -> bool:
        """Give a project another home; return whether it was this node's to give.

        Raises:
            Conflict: sessions of it live.
            Unavailable: that node takes no projects now, or has no room any more.
        """
        run = self._membership.control.run
        needs = await self._needs(project_id)
        await run(node_room.move_where_room, project_id, needs, home=self.name, to=node)
        # A move that was repeated has another answer, so the placement is read.
        found = await run(placements.home_of, project_id)
        moved = found is not None and found.node == node
        if moved:
            self._here.discard(project_id)
            self._note(project_id, node)
        return moved

    async def take_over(self) -> list[str]:
        """Take over the projects of nodes that are gone, in which sessions live.

        Returns:
            The projects of this node in which sessions live: an answer of the database may have
            been lost, so those that were taken over before are among them.

        Raises:
            StaleNode: this node has lost its own lease.
        """
        run = self._membership.control.run
        async with self._taking:
            moved = await run(placements.take_over, self._membership.fence)
            found = await run(placements.homes_on, self.name)
            here = {each.project_id for each in found}
            living = [
                each for each in await self._reader.live_sessions() if each.project_id in here
            ]
            for session in living:
                if session.project_id in moved:
                    self._lost[session.id] = moved[session.project_id]
            for project_id in moved:
                self._note(project_id, self.name)
            self._taken.update(moved)
        if moved:
            self.on_taken()
        return sorted({session.project_id for session in living})

    async def misplaced(self) -> list[str]:
        """The projects that were taken over and need what this node does not have."""
        if not self._taken:
            return []
        found = await self._membership.control.run(nodes.all_nodes)
        (node,) = [each for each in found if each.name == self.name]
        for project_id in sorted(self._taken):
            if project_id not in self._here or lacks(await self._needs(project_id), node) is None:
                self._taken.discard(project_id)
        return sorted(self._taken)

    def lost_machine(self, session_id: str) -> str | None:
        return self._lost.get(session_id)

    def session_ended(self, session_id: str) -> None:
        self._lost.pop(session_id, None)


class _Placement(msgspec.Struct):
    labels: dict[str, str] = {}
    runtime: str | None = None


class _NewProject(msgspec.Struct):
    """The part of a request for a project that its node depends on."""

    name: str = ""
    container_type: str | None = None
    workspace_isolation: bool = False
    placement: _Placement | None = None


def needs_of(config: Config, project: Project | None) -> ProjectNeeds:
    """Return the needs of a project; None: it is not known, and needs nothing special.

    The memory and the processors are those of its containers, with the options of this node. One
    that has others checks by its own before it takes a project.
    """
    if project is None:
        return ProjectNeeds()
    options = options_of(config, project.container_type or BASE, project)
    return _needs(
        options,
        isolated=project.workspace_isolation,
        container_type=project.container_type,
        placement=_Placement(labels=project.labels, runtime=project.runtime),
    )


def needs_of_new(config: Config, arguments: Mapping[str, Any]) -> ProjectNeeds:
    """Return the needs of a project that is asked for; the tool's handler checks the request."""
    try:
        asked = msgspec.convert(arguments, _NewProject)
    except msgspec.ValidationError:
        return ProjectNeeds()
    return _needs(
        options_of_new(config, asked.container_type, asked.name),
        isolated=asked.workspace_isolation,
        container_type=asked.container_type,
        placement=asked.placement or _Placement(),
    )


def _needs(
    options: ContainerOptions, *, isolated: bool, container_type: str | None, placement: _Placement
) -> ProjectNeeds:
    return ProjectNeeds(
        memory_bytes=options.memory_mb * MIB,
        processors=options.cpus,
        isolated=isolated,
        runtime=placement.runtime,
        container_type=container_type,
        labels=placement.labels,
    )
