-- Calls of tools in a log: a session that is recovered looks for those of its turn that are open.

CREATE INDEX events_of_tools ON events (session_id, idx)
  WHERE type IN ('tool_call', 'tool_result');
