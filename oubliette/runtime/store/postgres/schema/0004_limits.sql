-- Claims of limits in batches: one transaction for all that a node has to settle at a time.

DROP FUNCTION claim_limits(text, text, text[], bigint[]);
DROP FUNCTION release_limits(text, text[]);

-- One order of scopes for all that lock them, whatever the language of the database.
ALTER TABLE limit_counts ALTER COLUMN scope TYPE text COLLATE "C";
ALTER TABLE limit_claims ALTER COLUMN scope TYPE text COLLATE "C",
  ALTER COLUMN holder TYPE text COLLATE "C";

-- Settle what an epoch of a node has released and claimed, releases first; return the holders that
-- are refused. A claim that is repeated counts once. One with NULL as the most that its scope may
-- have is counted in any case, before the others; the others of a scope have the same most.
CREATE FUNCTION settle_claims(
  claiming text, held bigint, released text[], claimers text[], claimed text[], most bigint[]
) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  touched text[];
  each text;
BEGIN
  PERFORM hold_epoch(claiming, held);
  touched := ARRAY(
    SELECT unnest(claimed) COLLATE "C" AS scope
    UNION SELECT limit_claims.scope FROM limit_claims WHERE holder = ANY (released)
    ORDER BY scope
  );
  FOREACH each IN ARRAY touched LOOP -- its row orders all that claim it, on whichever node
    LOOP
      INSERT INTO limit_counts VALUES (each, 0) ON CONFLICT DO NOTHING;
      PERFORM FROM limit_counts WHERE scope = each FOR UPDATE;
      EXIT WHEN FOUND; -- otherwise its last holder has just left it
    END LOOP;
  END LOOP;
  WITH freed AS (
    DELETE FROM limit_claims WHERE holder = ANY (released) RETURNING scope
  ), counted AS (
    SELECT scope, count(*) AS holders FROM freed GROUP BY scope
  )
  UPDATE limit_counts SET used = used - holders FROM counted
  WHERE limit_counts.scope = counted.scope;
  WITH asked AS (
    SELECT DISTINCT ON (holder, scope) holder, scope, at_most, place
    FROM unnest(claimers, claimed, most) WITH ORDINALITY AS given (holder, scope, at_most, place)
    ORDER BY holder, scope, at_most NULLS FIRST
  ), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY scope ORDER BY at_most NULLS FIRST, place) AS rank
    FROM asked WHERE NOT EXISTS (
      SELECT FROM limit_claims AS known
      WHERE known.holder = asked.holder AND known.scope = asked.scope
    )
  ), granted AS (
    INSERT INTO limit_claims
    SELECT ranked.holder, ranked.scope, claiming
    FROM ranked JOIN limit_counts ON limit_counts.scope = ranked.scope
    WHERE at_most IS NULL OR used + rank <= at_most RETURNING scope
  ), counted AS (
    SELECT scope, count(*) AS holders FROM granted GROUP BY scope
  )
  UPDATE limit_counts SET used = used + holders FROM counted
  WHERE limit_counts.scope = counted.scope;
  DELETE FROM limit_counts WHERE used = 0 AND scope = ANY (touched);
  RETURN QUERY
    SELECT asked.holder FROM unnest(claimers, claimed) AS asked (holder, scope)
    WHERE NOT EXISTS (
      SELECT FROM limit_claims AS known
      WHERE known.holder = asked.holder AND known.scope = asked.scope
    );
END
$$;

-- Release what earlier epochs of a node have claimed. The open calls of its live sessions stay
-- counted: it is about to recover these sessions.
CREATE FUNCTION release_earlier_claims(claiming text, held bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM hold_epoch(claiming, held);
  PERFORM release_limits_of(claiming, ARRAY(
    SELECT caller_requests.id
    FROM placements
    JOIN sessions ON sessions.project_id = placements.project_id AND sessions.live = 1
    JOIN caller_requests ON caller_requests.session_id = sessions.id
    WHERE placements.node = claiming AND caller_requests.outcome IS NULL
  ));
END
$$;
