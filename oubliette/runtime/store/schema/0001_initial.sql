-- Every table keeps its record as JSON in `data`; the other columns are what is searched by.
-- A field that gets a default needs no migration, one that is searched by does.

CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE principals (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  data BLOB NOT NULL
);
CREATE INDEX principals_by_name ON principals (name);

CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  principal TEXT NOT NULL,
  session_id TEXT,
  data BLOB NOT NULL
);
CREATE INDEX tokens_by_session ON tokens (session_id) WHERE session_id IS NOT NULL;

CREATE TABLE projects (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  folded TEXT NOT NULL, -- the name, casefolded, for name_contains
  deleted_at REAL,
  data BLOB NOT NULL
);
CREATE UNIQUE INDEX projects_by_live_name ON projects (name) WHERE deleted_at IS NULL;

CREATE TABLE workspaces (
  id TEXT PRIMARY KEY,
  project_id TEXT NOT NULL,
  external_id TEXT,
  created_at REAL NOT NULL,
  deleted_at REAL,
  data BLOB NOT NULL
);
CREATE INDEX workspaces_by_project ON workspaces (project_id, created_at, id);

CREATE TABLE containers (
  id TEXT PRIMARY KEY,
  project_id TEXT NOT NULL,
  data BLOB NOT NULL
);
CREATE INDEX containers_by_project ON containers (project_id);

CREATE TABLE sessions (
  id TEXT PRIMARY KEY,
  project_id TEXT NOT NULL,
  workspace_id TEXT NOT NULL,
  principal TEXT NOT NULL,
  exploration_id TEXT NOT NULL,
  parent_session_id TEXT,
  container_id TEXT,
  depth INTEGER NOT NULL,
  status TEXT NOT NULL,
  live INTEGER NOT NULL, -- 0 when the status is terminal
  ended_by TEXT,
  updated_at REAL NOT NULL,
  data BLOB NOT NULL
);
CREATE INDEX sessions_by_project ON sessions (project_id, id);
CREATE INDEX sessions_by_exploration ON sessions (exploration_id, id);
CREATE INDEX sessions_by_workspace ON sessions (workspace_id, principal, id);
CREATE INDEX sessions_by_parent ON sessions (parent_session_id, id)
  WHERE parent_session_id IS NOT NULL;
CREATE INDEX sessions_live ON sessions (project_id, id) WHERE live = 1;

CREATE TABLE turns (
  session_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  state TEXT NOT NULL,
  call_id TEXT,
  data BLOB NOT NULL,
  PRIMARY KEY (session_id, number)
);
CREATE INDEX turns_open ON turns (session_id, state) WHERE state <> 'done';
CREATE INDEX turns_by_call ON turns (call_id) WHERE call_id IS NOT NULL;

CREATE TABLE caller_requests (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL,
  principal TEXT NOT NULL,
  caller_id TEXT NOT NULL,
  call_id TEXT,
  created_at REAL NOT NULL,
  settled_at REAL,
  outcome TEXT,
  data BLOB NOT NULL
);
CREATE INDEX caller_requests_by_session ON caller_requests (session_id, call_id);
CREATE INDEX caller_requests_open ON caller_requests (principal, caller_id)
  WHERE outcome IS NULL;

CREATE TABLE idempotency_keys (
  principal TEXT NOT NULL,
  tool TEXT NOT NULL,
  key TEXT NOT NULL,
  created_at REAL NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (principal, tool, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

-- AUTOINCREMENT: a seq is never given twice, even when the newest events were deleted; a cursor
-- that stands on one would otherwise skip its successor.
CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  session_id TEXT NOT NULL,
  idx INTEGER NOT NULL,
  ts REAL NOT NULL,
  type TEXT NOT NULL,
  version INTEGER NOT NULL,
  principal TEXT NOT NULL,
  caller_id TEXT,
  source TEXT,
  data BLOB NOT NULL
);
CREATE UNIQUE INDEX events_by_session ON events (session_id, idx);
CREATE UNIQUE INDEX events_by_source ON events (session_id, source) WHERE source IS NOT NULL;
CREATE INDEX events_by_caller ON events (principal, caller_id, seq) WHERE caller_id IS NOT NULL;

-- Up to where a session's log was cut; indexes go on from there even if nothing is left of it.
CREATE TABLE trims (
  session_id TEXT PRIMARY KEY,
  up_to INTEGER NOT NULL
) WITHOUT ROWID;
