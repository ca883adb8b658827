-- What a project needs of its home. Of a node, that much is taken by each project in which sessions
-- live, and for some seconds by one that was just placed: in them its first session begins.
ALTER TABLE placements
  ADD COLUMN memory_bytes bigint NOT NULL DEFAULT 0, -- of each of its containers, as its processors
  ADD COLUMN processors double precision NOT NULL DEFAULT 0,
  ADD COLUMN isolated boolean NOT NULL DEFAULT false; -- each workspace has a container of its own
CREATE INDEX placements_by_age ON placements (placed);
