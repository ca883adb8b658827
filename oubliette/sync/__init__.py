"""The blocking twin of the API, for scripts, notebooks and threads.

```python
with oubliette.sync.open() as ob:
    print(ob.project("shop").run("What is new?").text)
```

Classes and functions have the names, parameters and errors of the asynchronous ones, and return
when the work is done. Each opened object has an event loop in a thread of its own, which ends with
the block; the loop of a notebook is not touched. Several threads may use an object at once.
"""

from oubliette.sync.caller import Caller
from oubliette.sync.client import Oubliette
from oubliette.sync.events import Events
from oubliette.sync.opening import (
    connect,
    open,  # noqa: A004 - as programs call it
)
from oubliette.sync.project import Project
from oubliette.sync.session import Session
from oubliette.sync.tree import Tree
from oubliette.sync.turn import Turn
from oubliette.sync.workspace_files import WorkspaceFiles

__all__ = (
    "Caller",
    "Events",
    "Oubliette",
    "Project",
    "Session",
    "Tree",
    "Turn",
    "WorkspaceFiles",
    "connect",
    "open",
)
