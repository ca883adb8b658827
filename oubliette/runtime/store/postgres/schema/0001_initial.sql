-- The tables of SQLite's schema, in PostgreSQL's types. Every table keeps its record as JSON in
-- `data`, as bytes: jsonb refuses \u0000, which agents print. Ids and names compare as bytes.

CREATE TABLE meta (
  key TEXT COLLATE "C" PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE principals (
  id TEXT COLLATE "C" PRIMARY KEY,
  name TEXT NOT NULL,
  data BYTEA NOT NULL
);
CREATE INDEX principals_by_name ON principals (name);

CREATE TABLE tokens (
  id TEXT COLLATE "C" PRIMARY KEY,
  principal TEXT NOT NULL,
  session_id TEXT COLLATE "C",
  data BYTEA NOT NULL
);
CREATE INDEX tokens_by_session ON tokens (session_id) WHERE session_id IS NOT NULL;

CREATE TABLE projects (
  id TEXT COLLATE "C" PRIMARY KEY,
  name TEXT COLLATE "C" NOT NULL,
  folded TEXT COLLATE "C" NOT NULL, -- the name, casefolded, for name_contains
  deleted_at DOUBLE PRECISION,
  data BYTEA NOT NULL
);
CREATE UNIQUE INDEX projects_by_live_name ON projects (name) WHERE deleted_at IS NULL;

CREATE TABLE workspaces (
  id TEXT COLLATE "C" PRIMARY KEY,
  project_id TEXT COLLATE "C" NOT NULL,
  external_id TEXT,
  created_at DOUBLE PRECISION NOT NULL,
  deleted_at DOUBLE PRECISION,
  data BYTEA NOT NULL
);
CREATE INDEX workspaces_by_project ON workspaces (project_id, created_at, id);

CREATE TABLE containers (
  id TEXT COLLATE "C" PRIMARY KEY,
  project_id TEXT COLLATE "C" NOT NULL,
  data BYTEA NOT NULL
);
CREATE INDEX containers_by_project ON containers (project_id);

CREATE TABLE sessions (
  id TEXT COLLATE "C" PRIMARY KEY,
  project_id TEXT COLLATE "C" NOT NULL,
  workspace_id TEXT COLLATE "C" NOT NULL,
  principal TEXT NOT NULL,
  exploration_id TEXT COLLATE "C" NOT NULL,
  parent_session_id TEXT COLLATE "C",
  container_id TEXT COLLATE "C",
  depth BIGINT NOT NULL,
  status TEXT NOT NULL,
  live SMALLINT NOT NULL, -- 0 when the status is terminal
  ended_by TEXT,
  updated_at DOUBLE PRECISION NOT NULL,
  data BYTEA NOT NULL
);
CREATE INDEX sessions_by_project ON sessions (project_id, id);
CREATE INDEX sessions_by_exploration ON sessions (exploration_id, id);
CREATE INDEX sessions_by_workspace ON sessions (workspace_id, principal, id);
CREATE INDEX sessions_by_parent ON sessions (parent_session_id, id)
  WHERE parent_session_id IS NOT NULL;
CREATE INDEX sessions_live ON sessions (project_id, id) WHERE live = 1;

CREATE TABLE turns (
  rowid BIGINT GENERATED ALWAYS AS IDENTITY,
  session_id TEXT COLLATE "C" NOT NULL,
  number BIGINT NOT NULL,
  state TEXT NOT NULL,
  call_id TEXT,
  data BYTEA NOT NULL,
  PRIMARY KEY (session_id, number)
);
CREATE INDEX turns_open ON turns (session_id, state) WHERE state <> 'done';
CREATE INDEX turns_by_call ON turns (call_id) WHERE call_id IS NOT NULL;

CREATE TABLE caller_requests (
  id TEXT COLLATE "C" PRIMARY KEY,
  session_id TEXT COLLATE "C" NOT NULL,
  principal TEXT NOT NULL,
  caller_id TEXT NOT NULL,
  call_id TEXT,
  created_at DOUBLE PRECISION NOT NULL,
  settled_at DOUBLE PRECISION,
  outcome TEXT,
  data BYTEA NOT NULL
);
CREATE INDEX caller_requests_by_session ON caller_requests (session_id, call_id);
CREATE INDEX caller_requests_open ON caller_requests (principal, caller_id)
  WHERE outcome IS NULL;

CREATE TABLE idempotency_keys (
  principal TEXT NOT NULL,
  tool TEXT NOT NULL,
  key TEXT NOT NULL,
  created_at DOUBLE PRECISION NOT NULL,
  data BYTEA NOT NULL,
  PRIMARY KEY (principal, tool, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

-- The seq of an event is that of its transaction (see log_order), so that all events of a
-- transaction that is still open have a higher seq than those of all that have ended.
CREATE TABLE events (
  seq BIGINT PRIMARY KEY,
  session_id TEXT COLLATE "C" NOT NULL,
  idx BIGINT NOT NULL,
  ts DOUBLE PRECISION NOT NULL,
  type TEXT NOT NULL,
  version BIGINT NOT NULL,
  principal TEXT NOT NULL,
  caller_id TEXT,
  source TEXT COLLATE "C",
  data BYTEA NOT NULL
);
CREATE UNIQUE INDEX events_by_session ON events (session_id, idx);
CREATE UNIQUE INDEX events_by_source ON events (session_id, source) WHERE source IS NOT NULL;
CREATE INDEX events_by_caller ON events (principal, caller_id, seq) WHERE caller_id IS NOT NULL;

-- Added to the seq of each new event. Zero, unless the events came from another database, whose
-- seqs went further than the transactions of this one.
CREATE TABLE log_order (
  "offset" BIGINT NOT NULL
);
INSERT INTO log_order VALUES (0);

-- Up to where a session's log was cut; indexes go on from there even if nothing is left of it.
CREATE TABLE trims (
  session_id TEXT COLLATE "C" PRIMARY KEY,
  up_to BIGINT NOT NULL
);

-- What agents have asked permission for, until their sessions are purged.
CREATE TABLE permissions (
  rowid BIGINT GENERATED ALWAYS AS IDENTITY,
  id TEXT COLLATE "C" PRIMARY KEY,
  session_id TEXT COLLATE "C" NOT NULL,
  principal TEXT NOT NULL,
  caller_id TEXT,
  turn BIGINT NOT NULL,
  decision TEXT,
  data BYTEA NOT NULL
);
CREATE INDEX permissions_by_session ON permissions (session_id, turn);
CREATE INDEX permissions_open ON permissions (principal, caller_id) WHERE decision IS NULL;
