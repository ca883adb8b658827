-- What agents have asked permission for, until their sessions are purged.

CREATE TABLE permissions (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL,
  principal TEXT NOT NULL,
  caller_id TEXT,
  turn INTEGER NOT NULL,
  decision TEXT,
  data BLOB NOT NULL
);
CREATE INDEX permissions_by_session ON permissions (session_id, turn);
CREATE INDEX permissions_open ON permissions (principal, caller_id) WHERE decision IS NULL;
