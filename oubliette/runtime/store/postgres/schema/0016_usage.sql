-- What agents have used, in sums for each hour (UTC) of a session: a report reads these few rows,
-- and no log. NULL is what no agent has reported. The rows of a session that is removed are added to
-- those with an empty session_id, so that sums of projects, models and days stay.

CREATE TABLE usage (
  session_id TEXT COLLATE "C" NOT NULL,
  hour BIGINT NOT NULL, -- since 1970
  project_id TEXT COLLATE "C" NOT NULL,
  principal TEXT COLLATE "C" NOT NULL,
  agent TEXT COLLATE "C" NOT NULL,
  model TEXT COLLATE "C" NOT NULL, -- empty: unknown
  input_tokens DOUBLE PRECISION, -- no sum of what agents report can overflow
  output_tokens DOUBLE PRECISION,
  measured_usd DOUBLE PRECISION, -- from the configured prices
  reported_usd DOUBLE PRECISION, -- by the agent itself
  turns BIGINT NOT NULL,
  PRIMARY KEY (session_id, hour, project_id, principal, agent, model)
);
CREATE INDEX usage_by_hour ON usage (hour);
CREATE INDEX usage_by_project ON usage (project_id, hour);

-- Earlier releases have sums of whole sessions only, and 0 for what is unknown: they count in the
-- hour in which the session began. Only Droid's costs came from configured prices.
-- Escapes in texts are left out: the server refuses all of a record with one of NUL.
INSERT INTO usage
SELECT id, floor(began / 3600)::bigint, project_id, principal, agent, model,
  nullif(read, 0), nullif(written, 0),
  CASE WHEN agent = 'droid' THEN nullif(cost, 0) END,
  CASE WHEN agent <> 'droid' THEN nullif(cost, 0) END,
  turns
FROM (
  SELECT id, project_id, principal,
    (record ->> 'created_at')::double precision AS began,
    record ->> 'agent' AS agent,
    coalesce(record ->> 'model', '') AS model,
    coalesce((record ->> 'input_tokens')::double precision, 0) AS read,
    coalesce((record ->> 'output_tokens')::double precision, 0) AS written,
    coalesce((record ->> 'cost_usd')::double precision, 0) AS cost,
    coalesce((record ->> 'turn_count')::bigint, 0) AS turns
  FROM (
    SELECT id, project_id, principal,
      regexp_replace(convert_from(data, 'UTF8'), '\\(u[0-9a-fA-F]{4}|.)', '', 'g')::json AS record
    FROM sessions
  ) AS stored
) AS earlier
WHERE turns > 0;
