"""Guard that keeps OpenCode from running a repository's code, and secrets out of its environment.

OpenCode 1.18 looks for `.opencode`, `opencode.json` and `opencode.jsonc` in the working tree and
above it, and executes the plugins that it finds, in spite of every switch that it has. So a script
of ours is loaded before it, by the runtime that it is built with (Bun), and

* reports to every caller that none of these exists, and that OpenCode's own settings folder is a
new one in HOME, so that nothing counts that an agent has left in the old one;
* loads no module but OpenCode's own, those that it installs itself, and those of the settings
folder that the server's configuration names;
* reads secrets from a file in memory and gives them to OpenCode alone: they are not in the
environment of its process, nor in that of its children once it has read them.

If the script is not run, OpenCode has no settings that it could start with.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TRUSTED = "OUBLIETTE_TRUST_REPOSITORY"  # set where OpenCode may use a repository's settings
CONTENT = "OPENCODE_CONFIG_CONTENT"
MANAGED = "/etc/opencode"  # settings of an image
OWN_FOLDERS = ("OPENCODE_CONFIG_DIR", "XDG_CONFIG_HOME")  # the server's configuration may set them
OF_CLIENT = ("OUBLIETTE_API_KEY", "OUBLIETTE_PAIRING_SECRET")  # given to our MCP server by name
FOLDER = ".oubliette"  # of HOME
UNGUARDED = "{ the guard of Oubliette has not been run"  # no JSON: refused with this text

SCRIPT = r"""
"use strict";
const fs = require("node:fs"), path = require("node:path"), env = process.env;
let given = {};
if (env.OUBLIETTE_GUARD) {
  const fd = Number(env.OUBLIETTE_GUARD);
  given = JSON.parse(fs.readFileSync(fd, "utf8"));
  fs.ftruncateSync(fd, 0);  // says that we are here
  fs.closeSync(fd);
}
delete env.OUBLIETTE_GUARD;
delete env.BUN_INSPECT_PRELOAD;
const hide = (name, value) => Object.defineProperty(
  env, name, { value, enumerable: false, configurable: true, writable: true });
for (const [name, value] of Object.entries(given.secrets ?? {})) hide(name, value);
// OpenCode lists the environment to find these, once; the signal says that it has them
Object.assign(env, given.listed);
process.on("SIGUSR2", () => {
  for (const [name, value] of Object.entries(given.listed ?? {})) hide(name, value);
});
const own = given.settings;
if (own) {
  fs.rmSync(own, { recursive: true, force: true });
  hide("XDG_CONFIG_HOME", own);
}
const caches = env.XDG_CACHE_HOME || path.join(env.HOME || "/nonexistent", ".cache");
const trusted = given.trusted ?? [];
const within = (file, folders) =>
  folders.some((folder) => file === folder || file.startsWith(folder + "/"));
const searched = new Set([".opencode", "opencode.json", "opencode.jsonc"]);
const access = fs.access;
fs.access = function (file, mode, done) {
  const name = typeof file === "string" ? path.resolve(file) : "";
  const writing = typeof mode === "number" && mode & fs.constants.W_OK;
  let code;
  if (searched.has(path.basename(name)) && !within(name, trusted)) code = "ENOENT";
  // It would have a package installed there, which it does not need
  else if (own && writing && within(name, [own])) code = "EACCES";
  if (!code) return access.apply(this, arguments);
  const error = new Error(`${code}: access '${file}'`);
  process.nextTick(done ?? mode, Object.assign(error, { code, syscall: "access", path: file }));
};
const allowed = ["/$bunfs", path.join(caches, "opencode"), ...trusted]
  .map((folder) => folder.replace(/[^\w\/]/g, "\\$&") + "/")
  .join("|");
Bun.plugin({
  name: "oubliette",
  setup(build) {
    build.onLoad({ filter: new RegExp(`^(?!${allowed})`) }, ({ path: file }) => {
      throw new Error(`Oubliette does not let OpenCode load ${file}`);
    });
  },
});
"""


class Guarded:
    """Environment to start OpenCode with, and the in-memory file that it inherits.

    Args:
        environ: of this process, with the secrets.
        listed: more variables for OpenCode alone, which it finds by listing its
            environment; `hide` removes them from it.

    Raises:
        OSError: The script cannot be written into HOME.

    """

    def __init__(self, environ: Mapping[str, str], listed: Mapping[str, str]) -> None:
        self.environ = {name: value for name, value in environ.items() if name not in OF_CLIENT}
        self.fd: int | None = None
        self.notes: list[str] = []
        content = self.environ.get(CONTENT)
        if self.environ.pop(TRUSTED, ""):
            self.environ.update(listed)
            return
        secrets: dict[str, str] = {}
        if content is not None:
            workspace = self.environ.get("OUBLIETTE_WORKSPACE", "")
            content, self.notes = with_rules(content, workspace)
            secrets[CONTENT] = content
        self.environ[CONTENT] = UNGUARDED
        trusted = [self.environ[name] for name in OWN_FOLDERS if self.environ.get(name)]
        folder = os.path.join(self.environ.get("HOME") or "/", FOLDER)
        given = {
            "secrets": secrets,
            "listed": dict(listed),
            "trusted": [MANAGED, *(os.path.abspath(each) for each in trusted)],
            "settings": None if trusted else os.path.join(folder, "opencode"),
        }
        self.fd = _in_memory(json.dumps(given).encode())
        self.environ["OUBLIETTE_GUARD"] = str(self.fd)
        self.environ["BUN_INSPECT_PRELOAD"] = _script(folder)

    @property
    def taken(self) -> bool:
        """Whether the script has run, which empties its file; True if there is no file."""
        return self.fd is None or os.fstat(self.fd).st_size == 0

    def hide(self, pid: int) -> None:
        """Make OpenCode, once it has answered a request, remove `listed` from its environment."""
        if self.fd is not None and self.taken:  # without the script nothing would read it
            os.kill(pid, signal.SIGUSR2)

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that OpenCode must inherit."""
        return () if self.fd is None else (self.fd,)


def _in_memory(data: bytes) -> int:
    try:
        fd = os.memfd_create("oubliette")
    except AttributeError:  # a Python without it: a file without a name
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _script(folder: str) -> str:
    """Write the script, replacing any file of its name."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, "opencode_guard.js")
    temporary = f"{path}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(SCRIPT)
    os.replace(temporary, path)
    return path


NAMES = ("AGENTS.md", "CLAUDE.md", "CONTEXT.md")  # OpenCode's own order; the first one counts
LARGEST = 256 * 1024  # bytes of rules, which are in every prompt


def with_rules(content: str, workspace: str) -> tuple[str, list[str]]:
    """Return the settings with the rules of `workspace`, and the reasons why rules were left out.

    OpenCode that reads no settings of a repository loses its `AGENTS.md`, too. Regular files in the
    workspace are named; a link that leads out of it would expose its target to a model. If there
    are none yet, `AGENTS.md` is named: OpenCode reads it with every prompt.
    """
    if not workspace:
        return content, []
    notes: list[str] = []
    chosen = os.path.join(workspace, NAMES[0])
    for name in NAMES:
        path = os.path.join(workspace, name)
        if not os.path.lexists(path):
            continue
        real, reason = _plain(path, workspace)
        if reason:
            notes.append(f"{name} is not read: {reason}")
            chosen = ""
            continue
        chosen = real
        break
    if not chosen:
        return content, notes
    settings = json.loads(content)
    settings["instructions"] = [*settings.get("instructions", ()), chosen]
    return json.dumps(settings), notes


def _plain(path: str, workspace: str) -> tuple[str, str]:
    """Return the real path of a file, and the reason not to use it."""
    try:
        real = os.path.realpath(path)
        status = os.stat(real)
    except OSError as error:
        return path, os.strerror(error.errno or 0)
    root = os.path.realpath(workspace)
    if os.path.commonpath([root, real]) != root:
        return path, "it is a link that leads out of the workspace"
    if not stat.S_ISREG(status.st_mode):
        return path, "it is no plain file"
    if status.st_size > LARGEST:
        return path, f"it has {status.st_size} bytes, and at most {LARGEST} are taken"
    return real, ""
