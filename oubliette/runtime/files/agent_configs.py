"""Canonical `config.json` of each level, where no agent can write.

    template/config.json                                   initial content of new projects
    config/projects/<id>/config.json                       copied on project_create
    config/projects/<id>/workspaces/<uuid>/config.json     copied on workspace_create

"template/.factory → shipped with oubliette; projects/<id>/.factory (copied on project_create);
workspaces/<uuid>/.factory (copied on workspace_create, user tokens merged here)". A session reads
its workspace's file at each start of its agent, and no other. The files below `projects/` are views
of these: editing a view has no effect.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.config.agent_config import AgentConfig, checked, merged
from oubliette.errors import ConfigError, InvalidParameter, RuntimeFailure
from oubliette.runtime.files import safe_files

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from oubliette.records import Project

FILE: Final = "config.json"
SHIPPED: Final = AgentConfig()
"""Content of a new home's template: nothing of its own."""


class AgentConfigs:
    """Configuration files of one home. All methods block; call them in a worker thread."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.template = home / "template"
        self.projects = home / "config" / "projects"

    def prepare(self) -> None:
        """Make the folders, 0700, and the template that is shipped."""
        for folder in (self.template, self.projects.parent, self.projects):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.template / FILE).exists():
            with safe_files.opened(self.template) as folder:
                safe_files.write(folder, FILE, _formatted(SHIPPED), 0o600)

    def begun_with(self, project: Project) -> AgentConfig:
        """The content of a new project's file: the template, overlaid by its own settings.

        Raises:
            ConfigError: the template, or the two together, are invalid.
        """
        asked = {
            each.encode_name: getattr(project, each.name)
            for each in msgspec.structs.fields(AgentConfig)
        }
        lower = self._tree(self.template)
        given = {name: value for name, value in asked.items() if value}
        return _checked(merged(lower, given), f"{self.template / FILE}, with what was asked for")

    def add_project(self, project: Project) -> AgentConfig:
        """Write the file of a project if it is missing; return its content.

        Raises:
            ConfigError: the content is invalid.
        """
        path = self.projects / project.id
        with self._kept(project.id) as folder:
            if safe_files.exists(folder, FILE):
                return self._of(path)
            config = self.begun_with(project)
            safe_files.write(folder, FILE, _formatted(config), 0o600)
        return config

    def add_workspace(self, project: Project, workspace_id: str) -> AgentConfig:
        """Copy a project's file to one of its workspaces if it is missing; return its content.

        Raises:
            ConfigError: the content is invalid.
        """
        path = self.projects / project.id / "workspaces" / workspace_id
        with self._kept(project.id, "workspaces", workspace_id) as folder:
            if safe_files.exists(folder, FILE):
                return self._of(path)
            config = self.add_project(project)
            safe_files.write(folder, FILE, _formatted(config), 0o600)
        return config

    def remove_project(self, project_id: str) -> None:
        self.projects.mkdir(mode=0o700, parents=True, exist_ok=True)
        with safe_files.opened(self.projects) as folder:
            safe_files.remove(folder, project_id)

    def remove_workspace(self, project_id: str, workspace_id: str) -> None:
        with self._kept(project_id, "workspaces") as folder:
            safe_files.remove(folder, workspace_id)

    @contextlib.contextmanager
    def _kept(self, *names: str) -> Generator[int]:
        self.projects.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(safe_files.opened(self.projects))
            for name in names:
                folder = stack.enter_context(
                    safe_files.inner(folder, name, create=True, mode=0o700)
                )
            yield folder

    def _of(self, folder: Path) -> AgentConfig:
        return _checked(self._tree(folder), str(folder / FILE))

    @staticmethod
    def _tree(folder: Path) -> dict[str, Any]:
        path = folder / FILE
        try:
            with safe_files.opened(folder) as fd:
                data = safe_files.read(fd, FILE)
            return msgspec.json.decode(data, type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except (OSError, RuntimeFailure, msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(f"{path}: {error}", hint="mend it, or remove it") from error


def _checked(tree: dict[str, Any], place: str) -> AgentConfig:
    try:
        return checked(tree)
    except InvalidParameter as error:
        raise ConfigError(f"{place}: {error.message}", hint=error.hint) from error


def _formatted(config: AgentConfig) -> bytes:
    tree: dict[str, Any] = {"mcpServers": {}, **msgspec.to_builtins(config)}
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"
