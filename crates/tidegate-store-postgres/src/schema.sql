-- What a fleet keeps in PostgreSQL. A node creates it at its first connection; nothing else has to be installed.
--
-- `cells` holds every counter, and every record, as bytes that only nodes understand. It is unlogged: a counter is worth no disk
-- write, and a crash of the server empties it. No index but the primary key, and half of each page left free: an update then
-- stays in its page (HOT), and no vacuum has to follow it. State out of line is not compressed, for it is packed already.
CREATE SCHEMA IF NOT EXISTS tidegate;

CREATE UNLOGGED TABLE IF NOT EXISTS tidegate.cells (
    id uuid PRIMARY KEY,
    state bytea NOT NULL,
    -- Microseconds since 1970: from then on the row says nothing more than no row.
    ends bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
ALTER TABLE tidegate.cells ALTER COLUMN state SET STORAGE EXTERNAL;

-- Where the sweep goes on, and when it last ran: one node sweeps at a time.
CREATE UNLOGGED TABLE IF NOT EXISTS tidegate.sweeps (one boolean PRIMARY KEY, at bigint NOT NULL, next bigint NOT NULL);

CREATE OR REPLACE FUNCTION tidegate.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

-- Locks the rows with these ids (ascending, each once), creates those that are missing, and returns the time and what they hold.
--
-- Existing rows are locked in order, and only then missing ones created in order. Nobody who has created a row waits for a row
-- that exists, so no two calls wait for each other. A row that another call creates meanwhile cannot be locked now without
-- breaking that order: `states` is then null, and the caller starts again.
CREATE OR REPLACE FUNCTION tidegate.lock_rows_1(
    _ids uuid[], _wait_ms int, _held_ms int, OUT now_us bigint, OUT known uuid[], OUT states bytea[]
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    made bigint := 0;
BEGIN
    PERFORM set_config('lock_timeout', _wait_ms::text, true),
        -- A node that stops between its two calls holds its rows no longer than this.
        set_config('idle_in_transaction_session_timeout', _held_ms::text, true),
        -- The plan is made once per session, when the table may be empty.
        set_config('enable_seqscan', 'off', true);
    SELECT array_agg(c.id), array_agg(c.state) INTO known, states FROM (
        SELECT id, state FROM tidegate.cells WHERE id = ANY (_ids) ORDER BY id FOR UPDATE
    ) c;
    known := coalesce(known, '{}');
    states := coalesce(states, '{}');
    IF cardinality(known) < cardinality(_ids) THEN
        WITH missing AS (
            INSERT INTO tidegate.cells (id, state, ends)
            SELECT u.id, '', 0 FROM unnest(_ids) u(id) WHERE u.id <> ALL (known) ORDER BY u.id
            ON CONFLICT DO NOTHING RETURNING 1
        )
        SELECT count(*) INTO made FROM missing;
    END IF;
    IF cardinality(known) + made < cardinality(_ids) THEN
        states := NULL;
    END IF;
    -- After the last lock: no later holder of a row reads an earlier time.
    now_us := tidegate.now_us();
END $$;

-- Writes rows that the same transaction has locked, and deletes those with no state.
CREATE OR REPLACE FUNCTION tidegate.write_rows_1(_ids uuid[], _states bytea[], _ends bigint[], _gone uuid[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    UPDATE tidegate.cells c SET state = n.state, ends = n.ends
    FROM unnest(_ids, _states, _ends) AS n(id, state, ends) WHERE c.id = n.id;
    IF cardinality(_gone) > 0 THEN
        DELETE FROM tidegate.cells WHERE id = ANY (_gone);
    END IF;
END $$;

-- Deletes what has ended from the next pages of the table, at most once a second over all nodes. Rows in use are left for the
-- next round.
CREATE OR REPLACE FUNCTION tidegate.sweep_1(_blocks bigint, OUT deleted bigint) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_us bigint := tidegate.now_us();
    pages bigint := pg_relation_size('tidegate.cells') / current_setting('block_size')::bigint;
    piece bigint := least(greatest(pages / 60, 16), _blocks);
    start bigint;
BEGIN
    INSERT INTO tidegate.sweeps AS s VALUES (true, now_us, 0) ON CONFLICT (one) DO UPDATE
        SET at = now_us, next = CASE WHEN s.next + piece >= pages THEN 0 ELSE s.next + piece END
        WHERE s.at NOT BETWEEN now_us - 900000 AND now_us
        RETURNING s.next INTO start;
    deleted := 0;
    IF start IS NOT NULL THEN
        DELETE FROM tidegate.cells WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM tidegate.cells
            WHERE ctid >= format('(%s,0)', start)::tid AND ctid < format('(%s,0)', start + piece)::tid AND ends < now_us
            FOR UPDATE SKIP LOCKED
        ));
        GET DIAGNOSTICS deleted = ROW_COUNT;
    END IF;
END $$;
