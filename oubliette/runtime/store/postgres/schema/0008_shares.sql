-- Shares of limits: of what a principal may use, each node has a part that it uses without asking.
-- For each scope, what no node has and what all nodes have is never more than the limit.

CREATE TABLE limit_pools (
  scope text COLLATE "C" PRIMARY KEY,
  free double precision NOT NULL, -- what no node has, as of `since`
  held bigint NOT NULL, -- what all nodes have
  since timestamptz NOT NULL,
  full_from timestamptz NOT NULL, -- from then on the row may be deleted if no node has anything
  recalled timestamptz -- when the nodes were last asked to give back
) WITH (fillfactor = 50);
CREATE TABLE limit_shares (
  scope text COLLATE "C" NOT NULL,
  node text NOT NULL,
  held bigint NOT NULL CHECK (held > 0),
  spent bigint NOT NULL, -- as the node counts it: a statement that is repeated counts once
  answered bigint NOT NULL, -- latest recall after which the node has stated what it keeps
  PRIMARY KEY (scope, node)
) WITH (fillfactor = 50);
CREATE INDEX limit_shares_by_node ON limit_shares (node);
-- From a sequence, so that no number is given twice although rows are deleted.
CREATE SEQUENCE limit_recalls;

-- Record what a node keeps of each scope, and give it what it needs and, if there is more, what it
-- would like to have (`spare`). What it has spent is gone; the rest of what it had is free again. A
-- scope with a rate refills at it; in one without, what is given back is free at once.
-- If there is less than it needs and other nodes have some, these are asked to give back what they
-- do not use: `recalling` is the number of this recall, to be passed until all have answered.
-- `known` is what the database had as spent by the latest answer that has reached the node.
CREATE FUNCTION settle_shares(
  asking text, epoch bigint, scopes text[], rates double precision[], mosts bigint[],
  keeps bigint[], spent bigint[], known bigint[], needs bigint[], spares bigint[],
  answers bigint[], recalls bigint[]
) RETURNS TABLE (
  place integer, granted bigint, recalling bigint, seconds double precision, nodes_now bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  now_is timestamptz;
  pool limit_pools;
  mine limit_shares;
  had bigint;
  others bigint;
  rate double precision;
BEGIN
  PERFORM hold_epoch(asking, epoch);
  SELECT count(*) INTO nodes_now FROM nodes WHERE state <> 'gone';
  FOR place IN -- one order for all that lock them
    SELECT number::integer FROM unnest(scopes) WITH ORDINALITY AS given (name, number)
    ORDER BY name COLLATE "C"
  LOOP
    LOOP
      SELECT * INTO pool FROM limit_pools WHERE limit_pools.scope = scopes[place] FOR UPDATE;
      EXIT WHEN FOUND;
      INSERT INTO limit_pools
      VALUES (scopes[place], mosts[place], 0, clock_timestamp(), clock_timestamp())
      ON CONFLICT DO NOTHING;
    END LOOP;
    now_is := clock_timestamp();
    rate := rates[place];
    SELECT * INTO mine FROM limit_shares AS share
    WHERE share.scope = scopes[place] AND share.node = asking;
    had := coalesce(mine.held, 0);
    others := pool.held - had;
    pool.free := least(mosts[place] - others - keeps[place],
      pool.free + had - keeps[place] - (spent[place] - coalesce(mine.spent, known[place]))
        + rate * greatest(0, extract(epoch FROM now_is - pool.since)));
    IF rate IS NULL THEN
      pool.free := mosts[place] - others - keeps[place];
    END IF;
    granted := greatest(0, least(needs[place] + spares[place], floor(pool.free)));
    pool.free := pool.free - granted;
    recalling := 0;
    seconds := 0;
    IF granted < needs[place] THEN
      seconds := coalesce(greatest(0, (1 - pool.free) / rate), 0);
      IF recalls[place] > 0 THEN
        IF EXISTS (
          SELECT FROM limit_shares AS share WHERE share.scope = scopes[place]
            AND share.node <> asking AND share.answered < recalls[place]
        ) THEN
          recalling := recalls[place];
        END IF;
      -- What refills is asked for at times only: one that uses it up would otherwise keep all busy.
      ELSIF others > 0 AND (rate IS NULL OR pool.recalled IS NULL
        OR pool.recalled < now_is - interval '0.1 s')
      THEN
        recalling := nextval('limit_recalls');
        pool.recalled := now_is;
        PERFORM pg_notify('oubliette_shares', format('%s %s %s', recalling, asking, scopes[place]));
      END IF;
    END IF;
    IF answers[place] > 0 THEN -- whoever asked looks what there is now
      PERFORM pg_notify('oubliette_shares', format('0 %s %s', asking, scopes[place]));
    END IF;
    UPDATE limit_pools SET free = pool.free, held = others + keeps[place] + granted, since = now_is,
      full_from = now_is + coalesce(greatest(0, mosts[place] - pool.free) / rate, 0) * interval '1 s',
      recalled = pool.recalled
    WHERE limit_pools.scope = scopes[place];
    IF keeps[place] + granted = 0 THEN
      DELETE FROM limit_shares AS share
      WHERE share.scope = scopes[place] AND share.node = asking;
    ELSE
      INSERT INTO limit_shares
      VALUES (scopes[place], asking, keeps[place] + granted, spent[place], answers[place])
      ON CONFLICT ON CONSTRAINT limit_shares_pkey DO UPDATE SET
        held = excluded.held, spent = excluded.spent,
        answered = greatest(limit_shares.answered, excluded.answered);
    END IF;
    RETURN NEXT;
  END LOOP;
END
$$;

-- Delete the pools that are full and of which no node has anything.
CREATE FUNCTION forget_pools() RETURNS void LANGUAGE sql AS $$
  DELETE FROM limit_pools WHERE scope IN (
    SELECT scope FROM limit_pools WHERE held = 0 AND full_from < clock_timestamp()
    FOR UPDATE SKIP LOCKED
  )
$$;

-- Release what a node has claimed, but for these holders, and its shares. What it has not used of
-- those that refill may be used already: the pool refills as if it were.
CREATE OR REPLACE FUNCTION release_limits_of(claiming text, keep text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM limit_counts WHERE scope IN (
    SELECT scope FROM limit_claims WHERE node = claiming AND holder <> ALL (keep)
  ) ORDER BY scope FOR UPDATE;
  WITH freed AS (
    DELETE FROM limit_claims WHERE node = claiming AND holder <> ALL (keep) RETURNING scope
  ), counted AS (
    SELECT scope, count(*) AS holders FROM freed GROUP BY scope
  )
  UPDATE limit_counts SET used = used - holders FROM counted
  WHERE limit_counts.scope = counted.scope;
  PERFORM release_shares_of(claiming);
END
$$;

CREATE FUNCTION release_shares_of(holding text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM limit_pools WHERE scope IN (
    SELECT scope FROM limit_shares WHERE node = holding
  ) ORDER BY scope FOR UPDATE;
  WITH freed AS (
    DELETE FROM limit_shares WHERE node = holding RETURNING scope, held
  )
  UPDATE limit_pools SET held = limit_pools.held - freed.held FROM freed
  WHERE limit_pools.scope = freed.scope;
END
$$;
