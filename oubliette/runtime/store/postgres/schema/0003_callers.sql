-- Callers over nodes: the row of a caller in `listeners` is what all nodes know of it. A provider is a
-- listener that gets the calls of the caller's tools; the newest one counts, on whichever node.

CREATE SEQUENCE caller_changes;
ALTER TABLE listeners
  ADD COLUMN change bigint NOT NULL DEFAULT nextval('caller_changes'), -- rises with what is notified
  ADD COLUMN held boolean NOT NULL DEFAULT false, -- a provider is open, on the node
  ADD COLUMN grace double precision NOT NULL DEFAULT 0, -- seconds of presence after the node's end
  ADD COLUMN reason text NOT NULL DEFAULT '', -- why it is absent, once it is
  ADD COLUMN tools text, -- JSON; NULL: it provided none yet
  ADD COLUMN delivered bigint DEFAULT 0; -- seq up to which it has events; NULL: nobody knows

CREATE FUNCTION tell_of_caller() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    NEW.change := nextval('caller_changes');
  END IF;
  PERFORM pg_notify('oubliette_callers',
    format('%s %s/%s', NEW.change, NEW.principal, NEW.caller_id));
  RETURN NEW;
END
$$;
CREATE TRIGGER listeners_begin AFTER INSERT ON listeners
  FOR EACH ROW EXECUTE FUNCTION tell_of_caller();
CREATE TRIGGER listeners_change BEFORE UPDATE ON listeners
  FOR EACH ROW WHEN (
    (OLD.node, OLD.generation, OLD.held, OLD.seen_until, OLD.tools)
    IS DISTINCT FROM (NEW.node, NEW.generation, NEW.held, NEW.seen_until, NEW.tools)
  ) EXECUTE FUNCTION tell_of_caller();

-- The providers of a node end with its epoch, and with its lease if the node itself ends that. Up to
-- where they had delivered is known to nobody then.
CREATE FUNCTION end_listeners() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE listeners SET held = false, reason = 'its node has ended', delivered = NULL,
    seen_until = clock_timestamp() + grace * interval '1 second'
  WHERE node = NEW.name AND held;
  RETURN NULL;
END
$$;
CREATE TRIGGER nodes_end_listeners AFTER UPDATE ON nodes
  FOR EACH ROW WHEN (
    NEW.epoch <> OLD.epoch
    OR NEW.lease_until < OLD.lease_until AND NEW.lease_until <= clock_timestamp()
  )
  EXECUTE FUNCTION end_listeners();

-- As before, but the rows of its listeners stay: its new epoch ends them (nodes_end_listeners).
CREATE OR REPLACE FUNCTION declare_gone(lost text, declaring text, declaring_epoch bigint, lease interval)
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
  PERFORM release_limits_of(lost, '{}');
  RETURN NULL;
END
$$;

-- Keys: all nodes have the tokens in memory, and read them anew when one is made, changed or deleted.
-- Their last uses, which each node writes, are not of interest to the others.
CREATE FUNCTION token_without_last_use(data bytea) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT regexp_replace(convert_from(data, 'UTF8'), '"last_used_at":[^,}]*', '')
$$;
CREATE FUNCTION tell_of_tokens() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('oubliette_keys', '');
  RETURN NULL;
END
$$;
CREATE TRIGGER tokens_begin_or_end AFTER INSERT OR DELETE ON tokens
  FOR EACH ROW EXECUTE FUNCTION tell_of_tokens();
CREATE TRIGGER tokens_change AFTER UPDATE ON tokens
  FOR EACH ROW WHEN (token_without_last_use(OLD.data) <> token_without_last_use(NEW.data))
  EXECUTE FUNCTION tell_of_tokens();

-- A revocation is final: a node that wrote the token's last use at the same moment had read it before.
CREATE FUNCTION keep_revocation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NULL;
END
$$;
CREATE TRIGGER tokens_stay_revoked BEFORE UPDATE ON tokens
  FOR EACH ROW WHEN (
    convert_from(OLD.data, 'UTF8') ~ '"revoked_at":[0-9]'
    AND convert_from(NEW.data, 'UTF8') !~ '"revoked_at":[0-9]'
  ) EXECUTE FUNCTION keep_revocation();
