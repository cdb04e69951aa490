SET check_function_bodies = false;
CREATE SCHEMA LAPSE_SCHEMA;
CREATE FUNCTION LAPSE_SCHEMA.lapse_again(now timestamp with time zone, of_fence bigint, wait interval, pause interval, counted boolean, keep interval, OUT answer integer, OUT of_queue bytea) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    o "LAPSE_SCHEMA".lapse_order;
BEGIN
    SELECT * INTO o FROM "LAPSE_SCHEMA".lapse_order WHERE fence = of_fence FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    ELSIF o.no_more THEN
        IF NOT counted THEN
            o.attempt := greatest(o.attempt - 1, 0);
        END IF;
        PERFORM "LAPSE_SCHEMA".lapse_end(now, o, keep);
        answer := 1;
        RETURN;
    END IF;
    UPDATE "LAPSE_SCHEMA".lapse_order SET at = now + greatest(wait, pause), due = now + wait, fence = NULL,
        seq = CASE WHEN counted THEN nextval('"LAPSE_SCHEMA".lapse_seq') ELSE seq END,
        attempt = CASE WHEN counted THEN attempt ELSE greatest(attempt - 1, 0) END
        WHERE fence = of_fence;
    answer := 0;
    of_queue := o.queue;
END $$;
CREATE TABLE LAPSE_SCHEMA.lapse_order (
    id bytea NOT NULL,
    queue bytea NOT NULL,
    at timestamp with time zone NOT NULL,
    seq bigint NOT NULL,
    generation bigint NOT NULL,
    fence bigint,
    due timestamp with time zone NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    no_more boolean DEFAULT false NOT NULL,
    payload bytea,
    CONSTRAINT lapse_order_id_check CHECK (((octet_length(id) >= 1) AND (octet_length(id) <= 255)))
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_delay='0');
CREATE FUNCTION LAPSE_SCHEMA.lapse_bury(now timestamp with time zone, o LAPSE_SCHEMA.lapse_order, attempt integer, reason integer, error bytea, max_dead bigint, OUT letter bigint, OUT dropped bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    first bigint;
BEGIN
    DELETE FROM "LAPSE_SCHEMA".lapse_order WHERE id = o.id;
    PERFORM "LAPSE_SCHEMA".lapse_room(1);
    UPDATE "LAPSE_SCHEMA".lapse_dead d SET named = false WHERE d.id = o.id AND d.named;
    DELETE FROM "LAPSE_SCHEMA".lapse_ended e WHERE e.id = o.id;
    INSERT INTO "LAPSE_SCHEMA".lapse_dead (id, generation, queue, attempt, due, died, reason, error, named, payload)
        VALUES (o.id, o.generation, o.queue, attempt, o.due, now, reason, error, true, o.payload)
        RETURNING seq INTO letter;
    PERFORM set_config('lapse.letter', letter::text, true);
    dropped := 0;
    SELECT min(seq) INTO first FROM "LAPSE_SCHEMA".lapse_dead;
    IF letter - first >= max_dead THEN
        DELETE FROM "LAPSE_SCHEMA".lapse_dead WHERE seq IN (SELECT seq FROM "LAPSE_SCHEMA".lapse_dead ORDER BY seq DESC OFFSET max_dead);
        GET DIAGNOSTICS dropped = ROW_COUNT;
    END IF;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_cancel(id text, generation bigint DEFAULT 0) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    code integer;
BEGIN
    SELECT c.answer INTO code FROM "LAPSE_SCHEMA".lapse_cancel(clock_timestamp(), convert_to(id, 'UTF8'), generation,
        0, (SELECT keep * interval '1 microsecond' FROM "LAPSE_SCHEMA".lapse_meta)) c;
    RETURN CASE code WHEN 1 THEN 'cancelled' WHEN 3 THEN 'running'
        WHEN 4 THEN 'done' ELSE 'unknown' END;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_cancel(now timestamp with time zone, old_id bytea, of_generation bigint, unstarted bigint, keep interval, OUT answer integer, OUT of_queue bytea, OUT running_fence bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    o "LAPSE_SCHEMA".lapse_order;
BEGIN
    running_fence := 0;
    SELECT * INTO o FROM "LAPSE_SCHEMA".lapse_order WHERE id = old_id FOR UPDATE;
    IF NOT FOUND THEN
        answer := "LAPSE_SCHEMA".lapse_fate(now, old_id, of_generation, keep);
    ELSIF of_generation <> 0 AND of_generation <> o.generation THEN
        answer := 0;
    ELSIF o.fence IS NOT NULL AND o.at > now AND o.fence <> unstarted THEN
        IF NOT o.no_more THEN
            UPDATE "LAPSE_SCHEMA".lapse_order SET no_more = true WHERE id = old_id;
        END IF;
        answer := 3;
        running_fence := o.fence;
    ELSE
        PERFORM "LAPSE_SCHEMA".lapse_end(now, o, keep);
        answer := 1;
        of_queue := o.queue;
    END IF;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_claim(now timestamp with time zone, lease interval, queues bytea[], floor timestamp with time zone, floor_seq bigint, most integer, newest boolean) RETURNS TABLE(fence bigint, generation bigint, attempt integer, due timestamp with time zone, at timestamp with time zone, seq bigint, id bytea, queue bytea, payload bytea)
    LANGUAGE plpgsql ROWS 20
    AS $$
#variable_conflict use_column
DECLARE
    got integer := 0;
    room bigint := coalesce(nullif(current_setting('lapse.bytes', true), '')::bigint, 1048576);
    is_cut boolean := false;
    this bytea;
    quota bigint;
    ids bytea[];
    ats timestamptz[];
    sizes integer[];
    bytes bigint;
    n integer;
BEGIN
    FOR this, quota IN
        SELECT h.queue, count(*) FROM (
            SELECT q.queue, w.at, w.seq FROM unnest(queues) q(queue) CROSS JOIN LATERAL (
                SELECT o.at, o.seq FROM "LAPSE_SCHEMA".lapse_order o WHERE o.queue = q.queue
                    AND (o.at, o.seq) >= (floor, floor_seq)
                    AND o.at <= now AND NOT o.no_more AND most > 0
                    ORDER BY o.at, o.seq LIMIT most) w
            WHERE cardinality(queues) > 1 ORDER BY w.at, w.seq LIMIT most) h
        GROUP BY h.queue
        UNION ALL SELECT queues[1], most WHERE cardinality(queues) = 1 AND most > 0
    LOOP
        is_cut := is_cut OR room <= 0;
        EXIT WHEN is_cut;
        IF newest THEN
            SELECT array_agg(c.id), array_agg(c.at), array_agg(c.size), sum(c.size)
                INTO ids, ats, sizes, bytes FROM (
                SELECT o.id, o.at, octet_length(o.payload) AS size FROM "LAPSE_SCHEMA".lapse_order o
                WHERE o.queue = this AND (o.at, o.seq) >= (floor, floor_seq)
                    AND o.at <= now AND NOT o.no_more
                ORDER BY o.at DESC, o.seq DESC LIMIT quota FOR UPDATE SKIP LOCKED) c;
        ELSE
            SELECT array_agg(c.id), array_agg(c.at), array_agg(c.size), sum(c.size)
                INTO ids, ats, sizes, bytes FROM (
                SELECT o.id, o.at, octet_length(o.payload) AS size FROM "LAPSE_SCHEMA".lapse_order o
                WHERE o.queue = this AND (o.at, o.seq) >= (floor, floor_seq)
                    AND o.at <= now AND NOT o.no_more
                ORDER BY o.at, o.seq LIMIT quota FOR UPDATE SKIP LOCKED) c;
        END IF;
        CONTINUE WHEN ids IS NULL;
        n := cardinality(ids);
        IF bytes > room THEN
            n := 0;
            bytes := 0;
            WHILE n < cardinality(ids) AND bytes < room LOOP
                n := n + 1;
                bytes := bytes + coalesce(sizes[n], 0);
            END LOOP;
            is_cut := n < cardinality(ids);
        END IF;
        IF bytes > 0 THEN
            room := room - bytes;
            PERFORM set_config('lapse.bytes', room::text, true);
        END IF;
        got := got + n;
        RETURN QUERY WITH u AS (UPDATE "LAPSE_SCHEMA".lapse_order o SET fence = nextval('"LAPSE_SCHEMA".lapse_fence'),
            attempt = o.attempt + 1, at = now + lease,
            due = CASE WHEN o.fence IS NULL THEN o.due ELSE o.at END
            FROM unnest(ids[:n], ats[:n]) WITH ORDINALITY c(id, at, place)
            WHERE o.id = c.id RETURNING o.fence, o.generation, o.attempt, o.due, c.at,
            o.seq, o.id, o.queue, o.payload, c.place)
        SELECT u.fence, u.generation, u.attempt, u.due, u.at, u.seq, u.id, u.queue, u.payload
            FROM u ORDER BY u.place;
    END LOOP;
    IF got < most AND NOT is_cut THEN
        floor := greatest(floor, now + interval '1 microsecond');
        floor_seq := 0;
    END IF;
    RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL::integer, NULL::timestamptz,
        (SELECT o.at FROM "LAPSE_SCHEMA".lapse_order o WHERE o.queue = q.queue
            AND (o.at, o.seq) >= (floor, floor_seq) AND NOT o.no_more
            ORDER BY o.at, o.seq LIMIT 1),
        NULL::bigint, NULL::bytea, q.queue, NULL::bytea FROM unnest(queues) q(queue);
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_die(now timestamp with time zone, of_fence bigint, reason integer, error bytea, counted boolean, keep interval, max_dead bigint, OUT answer integer, OUT letter bigint, OUT dropped bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    o "LAPSE_SCHEMA".lapse_order;
BEGIN
    dropped := 0;
    SELECT * INTO o FROM "LAPSE_SCHEMA".lapse_order WHERE fence = of_fence FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF NOT counted THEN
        o.attempt := greatest(o.attempt - 1, 0);
    END IF;
    IF o.no_more THEN
        PERFORM "LAPSE_SCHEMA".lapse_end(now, o, keep);
        answer := 1;
        RETURN;
    END IF;
    SELECT b.letter, b.dropped INTO letter, dropped
        FROM "LAPSE_SCHEMA".lapse_bury(now, o, o.attempt, reason, error, max_dead) b;
    answer := 0;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_end(now timestamp with time zone, o LAPSE_SCHEMA.lapse_order, keep interval) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM "LAPSE_SCHEMA".lapse_order WHERE id = o.id;
    PERFORM "LAPSE_SCHEMA".lapse_room(1);
    IF keep > '0' THEN
        INSERT INTO "LAPSE_SCHEMA".lapse_ended AS e VALUES (o.id, o.generation, o.queue, o.attempt, o.due, now)
            ON CONFLICT (id) DO UPDATE SET generation = excluded.generation,
            queue = excluded.queue, attempt = excluded.attempt, due = excluded.due,
            ended = excluded.ended;
    END IF;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_fate(now timestamp with time zone, old_id bytea, of_generation bigint, keep interval) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    e record;
BEGIN
    SELECT generation, ended INTO e FROM "LAPSE_SCHEMA".lapse_ended WHERE id = old_id;
    IF NOT FOUND THEN
        SELECT generation, died AS ended INTO e FROM "LAPSE_SCHEMA".lapse_dead WHERE id = old_id AND named;
    END IF;
    IF FOUND AND (of_generation = 0 OR of_generation = e.generation) AND keep > '0'
        AND e.ended >= now - keep THEN
        RETURN 4;
    END IF;
    RETURN 0;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_heads() RETURNS TABLE(queue bytea, at timestamp with time zone)
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY WITH RECURSIVE q(queue, at) AS (
        (SELECT o.queue, o.at FROM "LAPSE_SCHEMA".lapse_order o WHERE NOT o.no_more
            ORDER BY o.queue, o.at, o.seq LIMIT 1)
        UNION ALL SELECT w.queue, w.at FROM q CROSS JOIN LATERAL (
            SELECT o.queue, o.at FROM "LAPSE_SCHEMA".lapse_order o WHERE o.queue > q.queue AND NOT o.no_more
            ORDER BY o.queue, o.at, o.seq LIMIT 1) w)
    SELECT q.queue, q.at FROM q;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_oldest(now timestamp with time zone) RETURNS LAPSE_SCHEMA.lapse_order
    LANGUAGE plpgsql
    AS $$
DECLARE
    o "LAPSE_SCHEMA".lapse_order;
    lost bytea;
BEGIN
    SELECT * INTO o FROM "LAPSE_SCHEMA".lapse_order w WHERE w.fence IS NULL ORDER BY w.seq LIMIT 1 FOR UPDATE;
    SELECT w.id INTO lost FROM (SELECT h.id, h.seq, h.at FROM "LAPSE_SCHEMA".lapse_order h WHERE h.fence > 0
            ORDER BY h.fence OFFSET 0) w
        WHERE w.at <= now AND (o.id IS NULL OR w.seq < o.seq) ORDER BY w.seq LIMIT 1;
    IF FOUND THEN
        SELECT * INTO o FROM "LAPSE_SCHEMA".lapse_order w WHERE w.id = lost FOR UPDATE;
    END IF;
    RETURN o;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_put(now timestamp with time zone, new_id bytea, wait interval, new_queue bytea, new_payload bytea, replaces boolean, unstarted bigint, OUT answer bigint, OUT replaced boolean, OUT running_fence bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    o record;
    due_at timestamptz := now + wait;
BEGIN
    replaced := false;
    running_fence := 0;
    LOOP
        answer := nextval('"LAPSE_SCHEMA".lapse_seq');
        INSERT INTO "LAPSE_SCHEMA".lapse_order (id, queue, at, seq, generation, due, payload)
            VALUES (new_id, new_queue, due_at, answer, answer, due_at, new_payload)
            ON CONFLICT (id) DO NOTHING;
        IF FOUND THEN
            PERFORM "LAPSE_SCHEMA".lapse_room(-1);
            EXIT;
        END IF;
        SELECT fence, at, no_more INTO o FROM "LAPSE_SCHEMA".lapse_order WHERE id = new_id FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF o.fence IS NOT NULL AND o.at > now AND o.fence <> unstarted THEN
            running_fence := o.fence;
        ELSIF NOT (o.no_more AND o.at <= now) THEN
            IF NOT replaces THEN
                answer := 0;
                RETURN;
            END IF;
            replaced := true;
        END IF;
        UPDATE "LAPSE_SCHEMA".lapse_order SET queue = new_queue, at = due_at, seq = answer, generation = answer,
            fence = NULL, due = due_at, attempt = 0, no_more = false, payload = new_payload
            WHERE id = new_id;
        EXIT;
    END LOOP;
    WITH e AS (DELETE FROM "LAPSE_SCHEMA".lapse_ended WHERE id = new_id)
        UPDATE "LAPSE_SCHEMA".lapse_dead SET named = false WHERE id = new_id AND named;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_put_limited(now timestamp with time zone, new_id bytea, wait interval, new_queue bytea, new_payload bytea, replaces boolean, unstarted bigint, makes_room boolean, max_dead bigint, OUT answer bigint, OUT replaced boolean, OUT running_fence bigint, OUT letter bigint, OUT dropped bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    oldest "LAPSE_SCHEMA".lapse_order;
BEGIN
    dropped := 0;
    PERFORM set_config('lapse.letter', '', true);
    IF "LAPSE_SCHEMA".lapse_room(0) <= 0 AND NOT EXISTS (SELECT FROM "LAPSE_SCHEMA".lapse_order WHERE id = new_id) THEN
        IF makes_room THEN
            oldest := "LAPSE_SCHEMA".lapse_oldest(now);
        END IF;
        IF oldest.id IS NULL THEN
            answer := -1;
            replaced := false;
            running_fence := 0;
            RETURN;
        END IF;
        SELECT b.letter, b.dropped INTO letter, dropped
            FROM "LAPSE_SCHEMA".lapse_bury(now, oldest, oldest.attempt, 4, NULL, max_dead) b;
    END IF;
    SELECT p.answer, p.replaced, p.running_fence INTO answer, replaced, running_fence
        FROM "LAPSE_SCHEMA".lapse_put(now, new_id, wait, new_queue, new_payload, replaces, unstarted) p;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_queues(old boolean) RETURNS bytea[]
    LANGUAGE plpgsql STABLE
    AS $$
BEGIN
    RETURN ARRAY(WITH RECURSIVE q(queue) AS (
        (SELECT o.queue FROM "LAPSE_SCHEMA".lapse_order o ORDER BY o.queue LIMIT 1)
        UNION ALL SELECT (SELECT o.queue FROM "LAPSE_SCHEMA".lapse_order o WHERE o.queue > q.queue
            ORDER BY o.queue LIMIT 1) FROM q WHERE q.queue IS NOT NULL)
        SELECT queue FROM q WHERE queue IS NOT NULL
        UNION SELECT queue FROM "LAPSE_SCHEMA".lapse_dead WHERE old
        UNION SELECT queue FROM "LAPSE_SCHEMA".lapse_ended WHERE old);
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_requeue(now timestamp with time zone, old_id bytea, of_generation bigint, wait interval, makes_room boolean, max_dead bigint, OUT answer bigint, OUT letter bigint, OUT dropped bigint, OUT of_queue bytea) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    d record;
    o record;
    oldest "LAPSE_SCHEMA".lapse_order;
BEGIN
    dropped := 0;
    PERFORM set_config('lapse.letter', '', true);
    SELECT seq, queue, payload INTO d FROM "LAPSE_SCHEMA".lapse_dead WHERE id = old_id AND (of_generation = 0
        OR generation = of_generation) ORDER BY generation DESC LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
        answer := 0;
        RETURN;
    END IF;
    SELECT fence, at, no_more INTO o FROM "LAPSE_SCHEMA".lapse_order WHERE id = old_id FOR UPDATE;
    IF FOUND THEN
        answer := CASE WHEN o.fence IS NOT NULL AND o.at > now THEN -3 ELSE -2 END;
        RETURN;
    END IF;
    IF "LAPSE_SCHEMA".lapse_room(0) <= 0 THEN
        IF makes_room THEN
            oldest := "LAPSE_SCHEMA".lapse_oldest(now);
        END IF;
        IF oldest.id IS NULL THEN
            answer := -1;
            RETURN;
        END IF;
    END IF;
    of_queue := d.queue;
    DELETE FROM "LAPSE_SCHEMA".lapse_dead WHERE seq = d.seq;
    SELECT p.answer INTO answer
        FROM "LAPSE_SCHEMA".lapse_put(now, old_id, wait, d.queue, d.payload, false, 0) p;
    IF answer = 0 THEN
        answer := -2;
        RAISE EXCEPTION 'order % was scheduled meanwhile', encode(old_id, 'escape')
            USING ERRCODE = '40001';
    END IF;
    IF oldest.id IS NOT NULL THEN
        SELECT b.letter, b.dropped INTO letter, dropped
            FROM "LAPSE_SCHEMA".lapse_bury(now, oldest, oldest.attempt, 4, NULL, max_dead) b;
    END IF;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_reschedule(now timestamp with time zone, old_id bytea, of_generation bigint, unstarted bigint, keep interval, wait interval, OUT answer integer, OUT of_queue bytea) RETURNS record
    LANGUAGE plpgsql
    AS $$
DECLARE
    o record;
BEGIN
    SELECT fence, at, generation, queue INTO o FROM "LAPSE_SCHEMA".lapse_order WHERE id = old_id FOR UPDATE;
    IF NOT FOUND THEN
        answer := "LAPSE_SCHEMA".lapse_fate(now, old_id, of_generation, keep);
        RETURN;
    ELSIF of_generation <> 0 AND of_generation <> o.generation THEN
        answer := 0;
        RETURN;
    ELSIF o.fence IS NOT NULL AND o.at > now AND o.fence <> unstarted THEN
        answer := 3;
        RETURN;
    END IF;
    UPDATE "LAPSE_SCHEMA".lapse_order SET at = now + wait, due = now + wait, seq = nextval('"LAPSE_SCHEMA".lapse_seq'), fence = NULL,
        attempt = CASE WHEN o.fence IS NOT NULL AND o.at > now THEN greatest(attempt - 1, 0)
        ELSE attempt END WHERE id = old_id;
    answer := 2;
    of_queue := o.queue;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_room(more bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    room text := current_setting('lapse.room', true);
BEGIN
    IF room IS NULL OR room = '' THEN
        RETURN NULL;
    END IF;
    IF more <> 0 THEN
        PERFORM set_config('lapse.room', (room::bigint + more)::text, true);
    END IF;
    RETURN room::bigint + more;
END $$;
CREATE FUNCTION LAPSE_SCHEMA.lapse_schedule(id text, delay interval, queue text DEFAULT ''::text, payload bytea DEFAULT NULL::bytea, replace boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    now timestamptz := clock_timestamp();
    given text := id;
    code bytea := convert_to(id, 'UTF8');
    wait interval := greatest(delay, '0');
    answer bigint;
BEGIN
    IF given IS NULL OR octet_length(code) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'lapse_schedule: an order id is 1 to 255 bytes'
            USING ERRCODE = '22023';
    ELSIF delay IS NULL OR now + delay > now + interval '36525 days' THEN
        RAISE EXCEPTION 'lapse_schedule: a delay of %: use up to 36525 days', delay
            USING ERRCODE = '22023';
    ELSIF queue IS NULL OR octet_length(queue) > 255 THEN
        RAISE EXCEPTION 'lapse_schedule: the name of a queue is up to 255 bytes'
            USING ERRCODE = '22023';
    ELSIF octet_length(payload) > 16777216 THEN
        RAISE EXCEPTION 'lapse_schedule: a payload of % bytes: use up to 16777216',
            octet_length(payload) USING ERRCODE = '22023';
    END IF;
    wait := (now + wait) - now;
    SELECT p.answer INTO answer FROM "LAPSE_SCHEMA".lapse_put(now, code, wait, convert_to(queue, 'UTF8'),
        CASE WHEN octet_length(payload) > 0 THEN payload END, coalesce(replace, false), 0) p;
    IF answer = 0 THEN
        RAISE EXCEPTION 'lapse_schedule: order "%" is pending already', given
            USING ERRCODE = '23505', HINT = 'Cancel it, or call with replace => true.';
    END IF;
    RETURN answer;
END $$;
CREATE TABLE LAPSE_SCHEMA.lapse_dead (
    seq bigint NOT NULL,
    id bytea NOT NULL,
    generation bigint NOT NULL,
    queue bytea NOT NULL,
    attempt integer NOT NULL,
    due timestamp with time zone NOT NULL,
    died timestamp with time zone NOT NULL,
    reason smallint NOT NULL,
    error bytea,
    named boolean NOT NULL,
    payload bytea
);
ALTER TABLE LAPSE_SCHEMA.lapse_dead ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME LAPSE_SCHEMA.lapse_dead_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE LAPSE_SCHEMA.lapse_ended (
    id bytea NOT NULL,
    generation bigint NOT NULL,
    queue bytea NOT NULL,
    attempt integer NOT NULL,
    due timestamp with time zone NOT NULL,
    ended timestamp with time zone NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_cost_delay='0');
CREATE SEQUENCE LAPSE_SCHEMA.lapse_fence
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE LAPSE_SCHEMA.lapse_meta (
    one integer NOT NULL,
    version integer NOT NULL,
    keep bigint NOT NULL,
    CONSTRAINT lapse_meta_one_check CHECK ((one = 1))
);
CREATE SEQUENCE LAPSE_SCHEMA.lapse_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
INSERT INTO LAPSE_SCHEMA.lapse_dead OVERRIDING SYSTEM VALUE VALUES (1, '\x64656164', 1796113538740335, '\x', 1, '2020-01-01 08:25:38.761383+00', '2020-01-01 08:25:38.794644+00', 2, '\x6e6f2073756368206f72646572', true, '\x626f6479');
INSERT INTO LAPSE_SCHEMA.lapse_ended VALUES ('\x656e646564', 1796113538740336, '\x', 0, '2020-01-01 08:25:38.798754+00', '2020-01-01 08:25:38.805383+00');
INSERT INTO LAPSE_SCHEMA.lapse_meta VALUES (1, 1, 3153600000000000);
INSERT INTO LAPSE_SCHEMA.lapse_order VALUES ('\x68656c64', '\x', '2020-01-01 08:25:48.825406+00', 1796113538740337, 1796113538740337, 1796113538740336, '2020-01-01 08:25:38.824667+00', 1, false, NULL);
INSERT INTO LAPSE_SCHEMA.lapse_order VALUES ('\x72756e6e696e67', '\x', '2020-01-01 08:25:48.847782+00', 1796113538740338, 1796113538740338, 1796113538740337, '2020-01-01 08:25:38.846906+00', 1, true, NULL);
INSERT INTO LAPSE_SCHEMA.lapse_order VALUES ('\x636166c3a901ff', '\x6d61696c', '2126-11-07 08:25:38.849986+00', 1796113538740339, 1796113538740339, NULL, '2126-11-07 08:25:38.849986+00', 0, false, '\x00ff');
SELECT pg_catalog.setval('LAPSE_SCHEMA.lapse_dead_seq_seq', 1, true);
SELECT pg_catalog.setval('LAPSE_SCHEMA.lapse_fence', 1796113538740337, true);
SELECT pg_catalog.setval('LAPSE_SCHEMA.lapse_seq', 1796113538740339, true);
ALTER TABLE ONLY LAPSE_SCHEMA.lapse_dead
    ADD CONSTRAINT lapse_dead_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY LAPSE_SCHEMA.lapse_ended
    ADD CONSTRAINT lapse_ended_pkey PRIMARY KEY (id);
ALTER TABLE ONLY LAPSE_SCHEMA.lapse_meta
    ADD CONSTRAINT lapse_meta_pkey PRIMARY KEY (one);
ALTER TABLE ONLY LAPSE_SCHEMA.lapse_order
    ADD CONSTRAINT lapse_order_pkey PRIMARY KEY (id);
CREATE INDEX lapse_dead_id ON LAPSE_SCHEMA.lapse_dead USING btree (id, generation);
CREATE INDEX lapse_ended_ended ON LAPSE_SCHEMA.lapse_ended USING btree (ended);
CREATE INDEX lapse_order_at ON LAPSE_SCHEMA.lapse_order USING btree (queue, at, seq);
CREATE UNIQUE INDEX lapse_order_fence ON LAPSE_SCHEMA.lapse_order USING btree (fence) WHERE (fence IS NOT NULL);
CREATE INDEX lapse_order_no_more ON LAPSE_SCHEMA.lapse_order USING btree (at) WHERE no_more;
CREATE INDEX lapse_order_seq ON LAPSE_SCHEMA.lapse_order USING btree (seq) WHERE (fence IS NULL);
