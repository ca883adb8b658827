-- Nodes of a cluster: leases, homes of projects, listeners of callers, claims of limits.
-- All times are the database's: no node's clock decides anything. The functions count on READ
-- COMMITTED, where each statement sees what was committed while it waited for a lock.

CREATE TABLE nodes (
  name text PRIMARY KEY,
  number integer GENERATED ALWAYS AS IDENTITY, -- in the advisory locks of its transactions
  epoch bigint NOT NULL,
  state text NOT NULL CHECK (state IN ('running', 'draining', 'gone')),
  lease_until timestamptz NOT NULL,
  steady_since timestamptz NOT NULL, -- since then no renewal was late
  started timestamptz NOT NULL,
  address text NOT NULL,
  offer jsonb NOT NULL, -- what it has: labels, runtimes, capacity
  load jsonb NOT NULL, -- what of it is taken, as of the latest renewal
  -- A change of a column of a unique index takes the lock that FOR KEY SHARE excludes. A renewal
  -- changes none: it does not wait for transactions, nor they for it.
  UNIQUE (name, epoch)
) WITH (fillfactor = 20);

-- Raise ND001 unless this is the node's current epoch, and keep it current until the transaction
-- ends. An error and no empty answer: it aborts what else a pipeline has sent already.
CREATE FUNCTION hold_epoch(node text, held bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  lock_number integer;
BEGIN
  SELECT number INTO lock_number FROM nodes WHERE name = node AND epoch = held FOR KEY SHARE;
  IF lock_number IS NULL THEN
    RAISE EXCEPTION 'epoch % of node % has ended', held, node USING ERRCODE = 'ND001';
  END IF;
  -- The row lock decides. The other one names the sessions that have it, for end_transactions, and
  -- the setting names the node, for check_home.
  PERFORM pg_advisory_xact_lock_shared(1852793957, lock_number),
    set_config('oubliette.node', node, true);
END
$$;

-- End the sessions that have a transaction of the node open, such as those of a stopped process.
CREATE FUNCTION end_transactions(node text) RETURNS bigint LANGUAGE sql AS $$
  SELECT count(*) FILTER (WHERE pg_terminate_backend(held.pid))
  FROM pg_locks AS held JOIN nodes ON held.objid::bigint = nodes.number
  WHERE held.locktype = 'advisory' AND held.classid::bigint = 1852793957 AND held.objsubid = 2
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND nodes.name = node AND held.pid <> pg_backend_pid()
$$;

CREATE TABLE placements (
  project_id text PRIMARY KEY,
  node text NOT NULL,
  epoch bigint NOT NULL, -- of the node, when the project was placed
  placed timestamptz NOT NULL
);
CREATE INDEX placements_by_node ON placements (node, project_id);

-- A session becomes live only on the home node of its project. The lock makes a move of the project
-- wait for the transaction, and the transaction for a move. Outside of a cluster nothing is checked.
CREATE FUNCTION check_home() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  here text := current_setting('oubliette.node', true);
BEGIN
  IF coalesce(here, '') <> '' THEN
    PERFORM FROM placements WHERE project_id = NEW.project_id AND node = here FOR SHARE;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'node % is not the home of project %', here, NEW.project_id
        USING ERRCODE = 'ND002';
    END IF;
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER sessions_begin_at_home AFTER INSERT ON sessions
  FOR EACH ROW WHEN (NEW.live = 1) EXECUTE FUNCTION check_home();
CREATE TRIGGER sessions_resume_at_home AFTER UPDATE OF live ON sessions
  FOR EACH ROW WHEN (NEW.live = 1 AND OLD.live <> 1) EXECUTE FUNCTION check_home();

-- Place a project on a node, unless it has a home; return its home. The homes on a node that is gone
-- count as none once nothing of the project lives. ND003: something lives; ND004: the node takes no
-- project. `expected` is the home that it moves away from: NULL, where it is not to be moved.
CREATE FUNCTION place_project(
  project text, target text, expected text, OUT home text, OUT placed_now boolean
) LANGUAGE plpgsql AS $$
DECLARE
  target_epoch bigint;
BEGIN
  placed_now := false;
  IF expected IS NULL THEN
    SELECT placements.node INTO home FROM placements JOIN nodes ON nodes.name = placements.node
    WHERE placements.project_id = project AND nodes.state <> 'gone';
    IF FOUND THEN
      RETURN;
    END IF;
  END IF;
  SELECT epoch INTO target_epoch FROM nodes
  WHERE name = target AND state = 'running' AND lease_until > clock_timestamp() FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node % takes no projects now', target USING ERRCODE = 'ND004';
  END IF;
  IF expected IS NULL THEN
    INSERT INTO placements VALUES (project, target, target_epoch, clock_timestamp())
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
      home := target;
      placed_now := true;
      RETURN;
    END IF;
  END IF;
  SELECT node INTO home FROM placements WHERE project_id = project FOR UPDATE;
  IF home = target OR home IS DISTINCT FROM coalesce(expected, home)
    OR expected IS NULL AND EXISTS (SELECT FROM nodes WHERE name = home AND state <> 'gone')
  THEN
    RETURN;
  END IF;
  IF EXISTS (SELECT FROM sessions WHERE project_id = project AND live = 1) THEN
    RAISE EXCEPTION 'sessions of project % live on node %', project, home USING ERRCODE = 'ND003';
  END IF;
  UPDATE placements SET node = target, epoch = target_epoch, placed = clock_timestamp()
  WHERE project_id = project;
  home := target;
  placed_now := true;
END
$$;

-- From a sequence, so that no generation is given twice although rows are deleted.
CREATE SEQUENCE listener_generations;
CREATE TABLE listeners (
  principal text NOT NULL,
  caller_id text NOT NULL,
  node text NOT NULL,
  generation bigint NOT NULL,
  seen_until timestamptz NOT NULL,
  PRIMARY KEY (principal, caller_id)
);
CREATE INDEX listeners_by_node ON listeners (node);
CREATE INDEX listeners_by_age ON listeners (seen_until);

-- How many hold each scope, such as the open calls of a principal. A row without holders may be deleted.
CREATE TABLE limit_counts (
  scope text PRIMARY KEY,
  used bigint NOT NULL CHECK (used >= 0)
) WITH (fillfactor = 50);
CREATE TABLE limit_claims (
  holder text NOT NULL,
  scope text NOT NULL,
  node text NOT NULL,
  PRIMARY KEY (holder, scope)
);
CREATE INDEX limit_claims_by_node ON limit_claims (node);

-- Count one more holder in each scope, in none if one of them is full: ND005, with its place in
-- the list and the number of its holders in DETAIL. The row of a scope orders all that claim it, on
-- whichever node; give the scopes in order, so that no two wait for each other.
CREATE FUNCTION claim_limits(claimer text, claiming text, scopes text[], most bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  count_now bigint;
BEGIN
  FOR i IN 1 .. coalesce(cardinality(scopes), 0) LOOP
    LOOP
      INSERT INTO limit_counts VALUES (scopes[i], 0) ON CONFLICT DO NOTHING;
      SELECT used INTO count_now FROM limit_counts WHERE scope = scopes[i] FOR UPDATE;
      EXIT WHEN FOUND; -- otherwise its last holder has just left it
    END LOOP;
    CONTINUE WHEN EXISTS (
      SELECT FROM limit_claims WHERE holder = claimer AND scope = scopes[i]
    );
    IF count_now >= most[i] THEN
      RAISE EXCEPTION '% is full', scopes[i]
        USING ERRCODE = 'ND005', DETAIL = format('%s %s', i, count_now);
    END IF;
    INSERT INTO limit_claims VALUES (claimer, scopes[i], claiming);
    UPDATE limit_counts SET used = used + 1 WHERE scope = scopes[i];
  END LOOP;
END
$$;

-- Release what a holder has: in these scopes, or in all where NULL.
CREATE FUNCTION release_limits(claimer text, scopes text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM limit_counts WHERE scope IN (
    SELECT scope FROM limit_claims
    WHERE holder = claimer AND (scopes IS NULL OR scope = ANY (scopes))
  ) ORDER BY scope FOR UPDATE;
  WITH freed AS (
    DELETE FROM limit_claims
    WHERE holder = claimer AND (scopes IS NULL OR scope = ANY (scopes)) RETURNING scope
  )
  UPDATE limit_counts SET used = used - 1 FROM freed WHERE limit_counts.scope = freed.scope;
  DELETE FROM limit_counts WHERE used = 0 AND scope = ANY (scopes);
END
$$;

-- Release what a node has claimed, but for these holders.
CREATE FUNCTION release_limits_of(claiming text, keep text[]) RETURNS void LANGUAGE plpgsql AS $$
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
END
$$;

-- Declare a node gone whose lease has ended; return NULL, or why not. The one that declares must have
-- had the database for a whole lease: otherwise the node had no chance to renew its own either.
CREATE FUNCTION declare_gone(lost text, declaring text, declaring_epoch bigint, lease interval)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  seen nodes;
  mine nodes;
BEGIN
  SELECT * INTO seen FROM nodes WHERE name = lost;
  IF NOT FOUND THEN
    RETURN 'no node has this name';
  ELSIF seen.state = 'gone' THEN
    RETURN NULL;
  ELSIF seen.lease_until >= clock_timestamp() THEN
    RETURN format('its lease lasts for another %s s',
      round(extract(epoch FROM seen.lease_until - clock_timestamp()), 1));
  END IF;
  PERFORM hold_epoch(declaring, declaring_epoch);
  SELECT * INTO mine FROM nodes WHERE name = declaring;
  IF mine.lease_until < clock_timestamp() OR mine.steady_since + lease > clock_timestamp() THEN
    RETURN format('node %s has not had the database for %s s without a gap', declaring,
      extract(epoch FROM lease)::integer);
  END IF;
  PERFORM end_transactions(lost);
  UPDATE nodes SET epoch = epoch + 1, state = 'gone'
  WHERE name = lost AND epoch = seen.epoch AND lease_until < clock_timestamp();
  IF NOT FOUND THEN
    RETURN 'it has renewed its lease';
  END IF;
  DELETE FROM listeners WHERE node = lost;
  PERFORM release_limits_of(lost, '{}');
  RETURN NULL;
END
$$;
