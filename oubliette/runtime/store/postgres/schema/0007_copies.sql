-- Copies of the snapshots of workspaces, so that another node has the files of one that is lost. A copy
-- has one row with the list of its parts; these are here in chunks, or on the node that holds them.

CREATE TABLE snapshot_copies (
  project_id text NOT NULL,
  name text NOT NULL,
  version bigint NOT NULL,
  holder text NOT NULL, -- node that has the parts; empty: they are in snapshot_chunks
  parts text[] NOT NULL,
  data bytea NOT NULL, -- the record, as JSON
  PRIMARY KEY (project_id, name)
);
CREATE INDEX snapshot_copies_by_holder ON snapshot_copies (holder);

-- A chunk is stored by a transaction of its own: a long one would delay all readers of the log. It
-- counts once its part is in the row of the copy.
CREATE TABLE snapshot_chunks (
  project_id text NOT NULL,
  name text NOT NULL,
  part text NOT NULL,
  number integer NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (project_id, name, part, number)
);
ALTER TABLE snapshot_chunks ALTER COLUMN data SET STORAGE EXTERNAL; -- it is compressed already

-- Check that a node has its epoch, and is the home of a project, until the transaction ends.
CREATE FUNCTION hold_home(writing text, held bigint, project text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM hold_epoch(writing, held);
  PERFORM FROM placements WHERE project_id = project AND node = writing FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'node % is not the home of project %', writing, project
      USING ERRCODE = 'ND002';
  END IF;
END
$$;

CREATE FUNCTION put_snapshot_chunk(
  writing text, held bigint, project text, copy text, new_part text, place integer, content bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM hold_home(writing, held, project);
  INSERT INTO snapshot_chunks VALUES (project, copy, new_part, place, content)
  ON CONFLICT DO NOTHING;
END
$$;

-- Replace the row of a copy by its next version; return false if another version is there. The same
-- row again counts as replaced: an answer may have been lost.
CREATE FUNCTION publish_snapshot_copy(
  writing text, held bigint, project text, copy text, next_version bigint, new_holder text,
  new_parts text[], record bytea
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM hold_home(writing, held, project);
  IF next_version = 1 THEN
    INSERT INTO snapshot_copies VALUES (project, copy, 1, new_holder, new_parts, record)
    ON CONFLICT DO NOTHING;
  ELSE
    UPDATE snapshot_copies
    SET version = next_version, holder = new_holder, parts = new_parts, data = record
    WHERE project_id = project AND name = copy AND version = next_version - 1;
  END IF;
  RETURN FOUND OR EXISTS (
    SELECT FROM snapshot_copies
    WHERE project_id = project AND name = copy AND version = next_version AND data = record
  );
END
$$;

-- Remove at most so many chunks of a copy that belong to none of its parts; return how many.
CREATE FUNCTION drop_snapshot_chunks(
  writing text, held bigint, project text, copy text, most integer
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  dropped bigint;
BEGIN
  PERFORM hold_home(writing, held, project);
  DELETE FROM snapshot_chunks WHERE (project_id, name, part, number) IN (
    SELECT chunk.project_id, chunk.name, chunk.part, chunk.number FROM snapshot_chunks AS chunk
    WHERE chunk.project_id = project AND chunk.name = copy AND NOT EXISTS (
      SELECT FROM snapshot_copies
      WHERE project_id = project AND name = copy AND chunk.part = ANY (parts)
    ) LIMIT most
  );
  GET DIAGNOSTICS dropped = ROW_COUNT;
  RETURN dropped;
END
$$;

-- Remove at most so many chunks of a project that is deleted, and then its copies; return how many.
CREATE FUNCTION forget_snapshot_copies(
  writing text, held bigint, project text, most integer
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  dropped bigint;
BEGIN
  PERFORM hold_epoch(writing, held);
  IF EXISTS (SELECT FROM projects WHERE id = project AND deleted_at IS NULL) THEN
    RETURN 0;
  END IF;
  DELETE FROM snapshot_chunks WHERE (project_id, name, part, number) IN (
    SELECT project_id, name, part, number FROM snapshot_chunks
    WHERE project_id = project LIMIT most
  );
  GET DIAGNOSTICS dropped = ROW_COUNT;
  IF dropped < most THEN
    DELETE FROM snapshot_copies WHERE project_id = project;
  END IF;
  RETURN dropped;
END
$$;
