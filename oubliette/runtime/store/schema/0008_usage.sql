-- What agents have used, in sums for each hour (UTC) of a session: a report reads these few rows,
-- and no log. NULL is what no agent has reported. The rows of a session that is removed are added to
-- those with an empty session_id, so that sums of projects, models and days stay.

CREATE TABLE usage (
  session_id TEXT NOT NULL,
  hour INTEGER NOT NULL, -- since 1970
  project_id TEXT NOT NULL,
  principal TEXT NOT NULL,
  agent TEXT NOT NULL,
  model TEXT NOT NULL, -- empty: unknown
  input_tokens REAL, -- REAL: no sum of what agents report can overflow
  output_tokens REAL,
  measured_usd REAL, -- from the configured prices
  reported_usd REAL, -- by the agent itself
  turns INTEGER NOT NULL,
  PRIMARY KEY (session_id, hour, project_id, principal, agent, model)
) WITHOUT ROWID;
CREATE INDEX usage_by_hour ON usage (hour);
CREATE INDEX usage_by_project ON usage (project_id, hour);

-- Earlier releases have sums of whole sessions only, and 0 for what is unknown: they count in the
-- hour in which the session began. Only Droid's costs came from configured prices.
INSERT INTO usage
SELECT id, CAST(began / 3600 AS INTEGER), project_id, principal, agent, model,
  nullif(read, 0), nullif(written, 0),
  CASE WHEN agent = 'droid' THEN nullif(cost, 0) END,
  CASE WHEN agent <> 'droid' THEN nullif(cost, 0) END,
  turns
FROM (
  SELECT id, project_id, principal,
    json_extract(CAST(data AS TEXT), '$.created_at') AS began,
    json_extract(CAST(data AS TEXT), '$.agent') AS agent,
    coalesce(json_extract(CAST(data AS TEXT), '$.model'), '') AS model,
    coalesce(json_extract(CAST(data AS TEXT), '$.input_tokens'), 0) AS read,
    coalesce(json_extract(CAST(data AS TEXT), '$.output_tokens'), 0) AS written,
    coalesce(json_extract(CAST(data AS TEXT), '$.cost_usd'), 0) AS cost,
    coalesce(json_extract(CAST(data AS TEXT), '$.turn_count'), 0) AS turns
  FROM sessions
) AS earlier
WHERE turns > 0;
