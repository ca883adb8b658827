-- The tools of each session's caller. Its record, which had them, is written at each turn. Records
-- of earlier releases have them in `data` until they are written.

CREATE TABLE session_tools (
  session_id TEXT PRIMARY KEY,
  data BLOB NOT NULL
);
