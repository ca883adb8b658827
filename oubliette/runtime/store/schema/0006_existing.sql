-- Projects and workspaces that exist: those that were deleted are kept, and may be many more.

CREATE INDEX projects_existing ON projects (id) WHERE deleted_at IS NULL;
CREATE INDEX workspaces_existing ON workspaces (project_id, created_at, id)
  WHERE deleted_at IS NULL;
