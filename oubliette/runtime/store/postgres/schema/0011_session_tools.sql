-- The tools of each session's caller. Its record, which had them, is written at each turn. Records
-- of earlier releases have them in `data` until they are written.

CREATE TABLE session_tools (
  session_id TEXT COLLATE "C" PRIMARY KEY,
  data BYTEA NOT NULL
);
