-- Sessions that ended, by what is asked of them: these reads take as long with 100,000 as with 100.

CREATE INDEX sessions_resumable ON sessions (workspace_id, principal, parent_session_id, id)
  WHERE ended_by IS NULL;
CREATE INDEX sessions_ended ON sessions (project_id, status, id) WHERE live = 0;
CREATE INDEX sessions_by_age ON sessions (updated_at) WHERE live = 0;
DROP INDEX sessions_by_workspace;
