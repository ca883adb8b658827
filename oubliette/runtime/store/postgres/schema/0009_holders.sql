-- A holder may count on several nodes, as a caller does: it is one holder until it has left the last.

ALTER TABLE limit_claims DROP CONSTRAINT limit_claims_pkey, ADD PRIMARY KEY (holder, scope, node);

-- Settle what an epoch of a node has released and claimed, releases first; return the holders that
-- are refused. A claim that is repeated counts once, also on several nodes. One with NULL as the
-- most that its scope may have is counted in any case, before the others; the others of a scope
-- have the same most.
CREATE OR REPLACE FUNCTION settle_claims(
  claiming text, held bigint, released text[], claimers text[], claimed text[], most bigint[]
) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  touched text[];
  each text;
BEGIN
  PERFORM hold_epoch(claiming, held);
  touched := ARRAY(
    SELECT unnest(claimed) COLLATE "C" AS scope
    UNION SELECT limit_claims.scope FROM limit_claims
    WHERE holder = ANY (released) AND node = claiming
    ORDER BY scope
  );
  FOREACH each IN ARRAY touched LOOP -- its row orders all that claim it, on whichever node
    LOOP
      INSERT INTO limit_counts VALUES (each, 0) ON CONFLICT DO NOTHING;
      PERFORM FROM limit_counts WHERE scope = each FOR UPDATE;
      EXIT WHEN FOUND; -- otherwise its last holder has just left it
    END LOOP;
  END LOOP;
  PERFORM uncount_claims(claiming, ARRAY(
    SELECT holder FROM limit_claims WHERE holder = ANY (released) AND node = claiming
  ));
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
  ), counted_elsewhere AS (
    INSERT INTO limit_claims
    SELECT asked.holder, asked.scope, claiming FROM asked WHERE EXISTS (
      SELECT FROM limit_claims AS known
      WHERE known.holder = asked.holder AND known.scope = asked.scope
    ) ON CONFLICT DO NOTHING
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

-- Delete the claims of these holders on a node; one that is left on another node still counts. The
-- rows of their scopes are locked.
CREATE FUNCTION uncount_claims(claiming text, leaving text[]) RETURNS void LANGUAGE sql AS $$
  WITH freed AS (
    DELETE FROM limit_claims WHERE holder = ANY (leaving) AND node = claiming
    RETURNING holder, scope
  ), counted AS (
    SELECT scope, count(*) AS holders FROM freed WHERE NOT EXISTS (
      SELECT FROM limit_claims AS other
      WHERE other.holder = freed.holder AND other.scope = freed.scope AND other.node <> claiming
    ) GROUP BY scope
  )
  UPDATE limit_counts SET used = used - holders FROM counted
  WHERE limit_counts.scope = counted.scope
$$;

-- Release what a node has claimed, but for these holders, and its shares.
CREATE OR REPLACE FUNCTION release_limits_of(claiming text, keep text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM limit_counts WHERE scope IN (
    SELECT scope FROM limit_claims WHERE node = claiming AND holder <> ALL (keep)
  ) ORDER BY scope FOR UPDATE;
  PERFORM uncount_claims(claiming, ARRAY(
    SELECT holder FROM limit_claims WHERE node = claiming AND holder <> ALL (keep)
  ));
  PERFORM release_shares_of(claiming);
END
$$;
