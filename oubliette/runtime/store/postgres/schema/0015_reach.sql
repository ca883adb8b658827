-- A caller has a place of its own for keys that are bound to a project: such a key takes over no listener
-- and replaces no tools of wider keys of its principal, nor these its.

ALTER TABLE listeners
  ADD COLUMN project text NOT NULL DEFAULT '', -- that its keys are bound to; empty: to none
  DROP CONSTRAINT listeners_pkey,
  ADD PRIMARY KEY (principal, caller_id, project);

CREATE OR REPLACE FUNCTION tell_of_caller() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    NEW.change := nextval('caller_changes');
  END IF;
  PERFORM pg_notify('oubliette_callers',
    format('%s %s %s/%s', NEW.change, NEW.project, NEW.principal, NEW.caller_id));
  RETURN NEW;
END
$$;
