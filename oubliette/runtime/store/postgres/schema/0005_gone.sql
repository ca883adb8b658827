-- Notify the other nodes that one was given up: whoever waits for it need not wait for its answer.
CREATE FUNCTION tell_of_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('oubliette_nodes', NEW.name);
  RETURN NULL;
END
$$;
CREATE TRIGGER nodes_tell_of_gone AFTER UPDATE OF state ON nodes
  FOR EACH ROW WHEN (NEW.state = 'gone' AND OLD.state <> 'gone') EXECUTE FUNCTION tell_of_gone();
