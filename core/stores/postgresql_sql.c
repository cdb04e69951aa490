/* postgresql_sql.c - the tables and functions in the server, as text.
 *
 * In all of it `@` stands for the quoted schema and "lapse_": lp_postgresql_expand writes the
 * names out, so that no search path matters. Functions that take `now` are the store's own; what
 * an application calls (lapse_schedule, lapse_cancel) takes none.
 *
 * Every function locks the one row that it changes and looks at it then. What they answer is
 * what lp_job says of its `answer`; so 0 to 4 are the values of lapse_fate. */
#include <stdlib.h>
#include <string.h>

#include "stores/postgresql.h"

/* clang-format off */

/* -- Version 1: the tables ---------------------------------------------------------------- */

/* An order is looked for by its id, claimed by (queue, at, seq), settled by its fence, and dies
 * to make room by its seq. Both tables that fill and empty fast are cleaned often. */
static const char create[] =
"CREATE TABLE @meta (\n"
"    one integer PRIMARY KEY CHECK (one = 1),\n"
"    version integer NOT NULL,\n"
"    keep bigint NOT NULL\n"
");\n"
"CREATE SEQUENCE @seq CACHE 1;\n"
"CREATE SEQUENCE @fence CACHE 1;\n"
"CREATE TABLE @order (\n"
"    id bytea PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 255),\n"
"    queue bytea NOT NULL,\n"
"    at timestamptz NOT NULL,\n"
"    seq bigint NOT NULL,\n"
"    generation bigint NOT NULL,\n"
"    fence bigint,\n"
"    due timestamptz NOT NULL,\n"
"    attempt integer NOT NULL DEFAULT 0,\n"
"    no_more boolean NOT NULL DEFAULT false,\n"
"    payload bytea\n"
") WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);\n"
"CREATE INDEX ~order_at ON @order (queue, at, seq);\n"
"CREATE UNIQUE INDEX ~order_fence ON @order (fence) WHERE fence IS NOT NULL;\n"
"CREATE INDEX ~order_no_more ON @order (at) WHERE no_more;\n"
"CREATE INDEX ~order_seq ON @order (seq) WHERE fence IS NULL;\n"
"CREATE TABLE @ended (\n"
"    id bytea PRIMARY KEY,\n"
"    generation bigint NOT NULL,\n"
"    queue bytea NOT NULL,\n"
"    attempt integer NOT NULL,\n"
"    due timestamptz NOT NULL,\n"
"    ended timestamptz NOT NULL\n"
") WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);\n"
"CREATE INDEX ~ended_ended ON @ended (ended);\n"
"CREATE TABLE @dead (\n"
"    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n"
"    id bytea NOT NULL,\n"
"    generation bigint NOT NULL,\n"
"    queue bytea NOT NULL,\n"
"    attempt integer NOT NULL,\n"
"    due timestamptz NOT NULL,\n"
"    died timestamptz NOT NULL,\n"
"    reason smallint NOT NULL,\n"
"    error bytea,\n"
"    named boolean NOT NULL,\n"
"    payload bytea\n"
");\n"
"CREATE INDEX ~dead_id ON @dead (id, generation);\n"
"INSERT INTO @meta VALUES (1, 1, 0);\n";

/* -- Version 1: the functions ------------------------------------------------------------- */

/* How many orders may still be accepted in this transaction, where somebody counts. */
static const char *const first_step[] = {create,
"CREATE FUNCTION @room(more bigint) RETURNS bigint LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    room text := current_setting('lapse.room', true);\n"
"BEGIN\n"
"    IF room IS NULL OR room = '' THEN\n"
"        RETURN NULL;\n"
"    END IF;\n"
"    IF more <> 0 THEN\n"
"        PERFORM set_config('lapse.room', (room::bigint + more)::text, true);\n"
"    END IF;\n"
"    RETURN room::bigint + more;\n"
"END $$;\n",

"CREATE FUNCTION @end(now timestamptz, o @order, keep interval) RETURNS void LANGUAGE plpgsql AS $$\n"
"BEGIN\n"
"    DELETE FROM @order WHERE id = o.id;\n"
"    PERFORM @room(1);\n"
"    IF keep > '0' THEN\n"
"        INSERT INTO @ended AS e VALUES (o.id, o.generation, o.queue, o.attempt, o.due, now)\n"
"            ON CONFLICT (id) DO UPDATE SET generation = excluded.generation,\n"
"            queue = excluded.queue, attempt = excluded.attempt, due = excluded.due,\n"
"            ended = excluded.ended;\n"
"    END IF;\n"
"END $$;\n",

/* Returns how many others were dropped to keep to `max_dead`, and the new letter's seq. */
"CREATE FUNCTION @bury(now timestamptz, o @order, attempt integer, reason integer, error bytea,\n"
"    max_dead bigint, OUT letter bigint, OUT dropped bigint) LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    first bigint;\n"
"BEGIN\n"
"    DELETE FROM @order WHERE id = o.id;\n"
"    PERFORM @room(1);\n"
"    UPDATE @dead d SET named = false WHERE d.id = o.id AND d.named;\n"
"    DELETE FROM @ended e WHERE e.id = o.id;\n"
"    INSERT INTO @dead (id, generation, queue, attempt, due, died, reason, error, named, payload)\n"
"        VALUES (o.id, o.generation, o.queue, attempt, o.due, now, reason, error, true, o.payload)\n"
"        RETURNING seq INTO letter;\n"
"    PERFORM set_config('lapse.letter', letter::text, true);\n"
"    dropped := 0;\n"
"    SELECT min(seq) INTO first FROM @dead;\n"
"    IF letter - first >= max_dead THEN\n"
"        DELETE FROM @dead WHERE seq IN (SELECT seq FROM @dead ORDER BY seq DESC OFFSET max_dead);\n"
"        GET DIAGNOSTICS dropped = ROW_COUNT;\n"
"    END IF;\n"
"END $$;\n",

/* A generation; 0: it is pending already. */
"CREATE FUNCTION @put(now timestamptz, new_id bytea, wait interval, new_queue bytea,\n"
"    new_payload bytea, replaces boolean, unstarted bigint, OUT answer bigint,\n"
"    OUT replaced boolean, OUT running_fence bigint) LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o record;\n"
"    due_at timestamptz := now + wait;\n"
"BEGIN\n"
"    replaced := false;\n"
"    running_fence := 0;\n"
"    LOOP\n"
"        answer := nextval('@seq');\n"
"        INSERT INTO @order (id, queue, at, seq, generation, due, payload)\n"
"            VALUES (new_id, new_queue, due_at, answer, answer, due_at, new_payload)\n"
"            ON CONFLICT (id) DO NOTHING;\n"
"        IF FOUND THEN\n"
"            PERFORM @room(-1);\n"
"            EXIT;\n"
"        END IF;\n"
"        SELECT fence, at, no_more INTO o FROM @order WHERE id = new_id FOR UPDATE;\n"
"        CONTINUE WHEN NOT FOUND;\n"
"        IF o.fence IS NOT NULL AND o.at > now AND o.fence <> unstarted THEN\n"
"            running_fence := o.fence;\n"
"        ELSIF NOT (o.no_more AND o.at <= now) THEN\n"
"            IF NOT replaces THEN\n"
"                answer := 0;\n"
"                RETURN;\n"
"            END IF;\n"
"            replaced := true;\n"
"        END IF;\n"
"        UPDATE @order SET queue = new_queue, at = due_at, seq = answer, generation = answer,\n"
"            fence = NULL, due = due_at, attempt = 0, no_more = false, payload = new_payload\n"
"            WHERE id = new_id;\n"
"        EXIT;\n"
"    END LOOP;\n"
"    WITH e AS (DELETE FROM @ended WHERE id = new_id)\n"
"        UPDATE @dead SET named = false WHERE id = new_id AND named;\n"
"END $$;\n",

/* What was accepted first of those that wait: pending ones have an index by seq, and those whose
 * lease has ended are among the few that are held. Locked; id null: there is none. */
"CREATE FUNCTION @oldest(now timestamptz) RETURNS @order LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o @order;\n"
"    lost bytea;\n"
"BEGIN\n"
"    SELECT * INTO o FROM @order w WHERE w.fence IS NULL ORDER BY w.seq LIMIT 1 FOR UPDATE;\n"
"    SELECT w.id INTO lost FROM (SELECT h.id, h.seq, h.at FROM @order h WHERE h.fence > 0\n"
"            ORDER BY h.fence OFFSET 0) w\n"
"        WHERE w.at <= now AND (o.id IS NULL OR w.seq < o.seq) ORDER BY w.seq LIMIT 1;\n"
"    IF FOUND THEN\n"
"        SELECT * INTO o FROM @order w WHERE w.id = lost FOR UPDATE;\n"
"    END IF;\n"
"    RETURN o;\n"
"END $$;\n",

/* @put under max_pending; -1: it is full. `letter` is what died to make room. */
"CREATE FUNCTION @put_limited(now timestamptz, new_id bytea, wait interval, new_queue bytea,\n"
"    new_payload bytea, replaces boolean, unstarted bigint, makes_room boolean, max_dead bigint,\n"
"    OUT answer bigint, OUT replaced boolean, OUT running_fence bigint, OUT letter bigint,\n"
"    OUT dropped bigint) LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    oldest @order;\n"
"BEGIN\n"
"    dropped := 0;\n"
"    PERFORM set_config('lapse.letter', '', true);\n"
"    IF @room(0) <= 0 AND NOT EXISTS (SELECT FROM @order WHERE id = new_id) THEN\n"
"        IF makes_room THEN\n"
"            oldest := @oldest(now);\n"
"        END IF;\n"
"        IF oldest.id IS NULL THEN\n"
"            answer := -1;\n"
"            replaced := false;\n"
"            running_fence := 0;\n"
"            RETURN;\n"
"        END IF;\n"
"        SELECT b.letter, b.dropped INTO letter, dropped\n"
"            FROM @bury(now, oldest, oldest.attempt, 4, NULL, max_dead) b;\n"
"    END IF;\n"
"    SELECT p.answer, p.replaced, p.running_fence INTO answer, replaced, running_fence\n"
"        FROM @put(now, new_id, wait, new_queue, new_payload, replaces, unstarted) p;\n"
"END $$;\n",

/* What cancel and reschedule answer, a lapse_fate, of an order that has ended. */
"CREATE FUNCTION @fate(now timestamptz, old_id bytea, of_generation bigint, keep interval)\n"
"    RETURNS integer LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    e record;\n"
"BEGIN\n"
"    SELECT generation, ended INTO e FROM @ended WHERE id = old_id;\n"
"    IF NOT FOUND THEN\n"
"        SELECT generation, died AS ended INTO e FROM @dead WHERE id = old_id AND named;\n"
"    END IF;\n"
"    IF FOUND AND (of_generation = 0 OR of_generation = e.generation) AND keep > '0'\n"
"        AND e.ended >= now - keep THEN\n"
"        RETURN 4;\n"
"    END IF;\n"
"    RETURN 0;\n"
"END $$;\n",

"CREATE FUNCTION @cancel(now timestamptz, old_id bytea, of_generation bigint, unstarted bigint,\n"
"    keep interval, OUT answer integer, OUT of_queue bytea, OUT running_fence bigint)\n"
"    LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o @order;\n"
"BEGIN\n"
"    running_fence := 0;\n"
"    SELECT * INTO o FROM @order WHERE id = old_id FOR UPDATE;\n"
"    IF NOT FOUND THEN\n"
"        answer := @fate(now, old_id, of_generation, keep);\n"
"    ELSIF of_generation <> 0 AND of_generation <> o.generation THEN\n"
"        answer := 0;\n"
"    ELSIF o.fence IS NOT NULL AND o.at > now AND o.fence <> unstarted THEN\n"
"        IF NOT o.no_more THEN\n"
"            UPDATE @order SET no_more = true WHERE id = old_id;\n"
"        END IF;\n"
"        answer := 3;\n"
"        running_fence := o.fence;\n"
"    ELSE\n"
"        PERFORM @end(now, o, keep);\n"
"        answer := 1;\n"
"        of_queue := o.queue;\n"
"    END IF;\n"
"END $$;\n",

"CREATE FUNCTION @reschedule(now timestamptz, old_id bytea, of_generation bigint,\n"
"    unstarted bigint, keep interval, wait interval, OUT answer integer, OUT of_queue bytea)\n"
"    LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o record;\n"
"BEGIN\n"
"    SELECT fence, at, generation, queue INTO o FROM @order WHERE id = old_id FOR UPDATE;\n"
"    IF NOT FOUND THEN\n"
"        answer := @fate(now, old_id, of_generation, keep);\n"
"        RETURN;\n"
"    ELSIF of_generation <> 0 AND of_generation <> o.generation THEN\n"
"        answer := 0;\n"
"        RETURN;\n"
"    ELSIF o.fence IS NOT NULL AND o.at > now AND o.fence <> unstarted THEN\n"
"        answer := 3;\n"
"        RETURN;\n"
"    END IF;\n"
"    UPDATE @order SET at = now + wait, due = now + wait, seq = nextval('@seq'), fence = NULL,\n"
"        attempt = CASE WHEN o.fence IS NOT NULL AND o.at > now THEN greatest(attempt - 1, 0)\n"
"        ELSE attempt END WHERE id = old_id;\n"
"    answer := 2;\n"
"    of_queue := o.queue;\n"
"END $$;\n",

/* Settlements of one claim: 0 done, 1 it ended as cancelled, null: no such claim is held. */
"CREATE FUNCTION @again(now timestamptz, of_fence bigint, wait interval, pause interval,\n"
"    counted boolean, keep interval, OUT answer integer, OUT of_queue bytea)\n"
"    LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o @order;\n"
"BEGIN\n"
"    SELECT * INTO o FROM @order WHERE fence = of_fence FOR UPDATE;\n"
"    IF NOT FOUND THEN\n"
"        RETURN;\n"
"    ELSIF o.no_more THEN\n"
"        IF NOT counted THEN\n"
"            o.attempt := greatest(o.attempt - 1, 0);\n"
"        END IF;\n"
"        PERFORM @end(now, o, keep);\n"
"        answer := 1;\n"
"        RETURN;\n"
"    END IF;\n"
"    UPDATE @order SET at = now + greatest(wait, pause), due = now + wait, fence = NULL,\n"
"        seq = CASE WHEN counted THEN nextval('@seq') ELSE seq END,\n"
"        attempt = CASE WHEN counted THEN attempt ELSE greatest(attempt - 1, 0) END\n"
"        WHERE fence = of_fence;\n"
"    answer := 0;\n"
"    of_queue := o.queue;\n"
"END $$;\n",

"CREATE FUNCTION @die(now timestamptz, of_fence bigint, reason integer, error bytea,\n"
"    counted boolean, keep interval, max_dead bigint, OUT answer integer, OUT letter bigint,\n"
"    OUT dropped bigint) LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o @order;\n"
"BEGIN\n"
"    dropped := 0;\n"
"    SELECT * INTO o FROM @order WHERE fence = of_fence FOR UPDATE;\n"
"    IF NOT FOUND THEN\n"
"        RETURN;\n"
"    END IF;\n"
"    IF NOT counted THEN\n"
"        o.attempt := greatest(o.attempt - 1, 0);\n"
"    END IF;\n"
"    IF o.no_more THEN\n"
"        PERFORM @end(now, o, keep);\n"
"        answer := 1;\n"
"        RETURN;\n"
"    END IF;\n"
"    SELECT b.letter, b.dropped INTO letter, dropped\n"
"        FROM @bury(now, o, o.attempt, reason, error, max_dead) b;\n"
"    answer := 0;\n"
"END $$;\n",

/* A generation; 0: there is none; -1: it is full; -2 pending, -3 running already. First the
 * letter leaves: one more of them may drop the oldest, which it may be. */
"CREATE FUNCTION @requeue(now timestamptz, old_id bytea, of_generation bigint, wait interval,\n"
"    makes_room boolean, max_dead bigint, OUT answer bigint, OUT letter bigint,\n"
"    OUT dropped bigint, OUT of_queue bytea) LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    d record;\n"
"    o record;\n"
"    oldest @order;\n"
"BEGIN\n"
"    dropped := 0;\n"
"    PERFORM set_config('lapse.letter', '', true);\n"
"    SELECT seq, queue, payload INTO d FROM @dead WHERE id = old_id AND (of_generation = 0\n"
"        OR generation = of_generation) ORDER BY generation DESC LIMIT 1 FOR UPDATE;\n"
"    IF NOT FOUND THEN\n"
"        answer := 0;\n"
"        RETURN;\n"
"    END IF;\n"
"    SELECT fence, at, no_more INTO o FROM @order WHERE id = old_id FOR UPDATE;\n"
"    IF FOUND THEN\n"
"        answer := CASE WHEN o.fence IS NOT NULL AND o.at > now THEN -3 ELSE -2 END;\n"
"        RETURN;\n"
"    END IF;\n"
"    IF @room(0) <= 0 THEN\n"
"        IF makes_room THEN\n"
"            oldest := @oldest(now);\n"
"        END IF;\n"
"        IF oldest.id IS NULL THEN\n"
"            answer := -1;\n"
"            RETURN;\n"
"        END IF;\n"
"    END IF;\n"
"    of_queue := d.queue;\n"
"    DELETE FROM @dead WHERE seq = d.seq;\n"
"    SELECT p.answer INTO answer\n"
"        FROM @put(now, old_id, wait, d.queue, d.payload, false, 0) p;\n"
"    IF answer = 0 THEN\n"
"        answer := -2;\n"
"        RAISE EXCEPTION 'order % was scheduled meanwhile', encode(old_id, 'escape')\n"
"            USING ERRCODE = '40001';\n"
"    END IF;\n"
"    IF oldest.id IS NOT NULL THEN\n"
"        SELECT b.letter, b.dropped INTO letter, dropped\n"
"            FROM @bury(now, oldest, oldest.attempt, 4, NULL, max_dead) b;\n"
"    END IF;\n"
"END $$;\n",

/* Claim up to `most` orders of the queues, from `floor` and `floor_seq` on, those that fell due
 * first (or `newest`: last); then a row for each queue of which only `queue` and `at` are set:
 * when its next can be. Among several queues it is settled first how many each gives, so that no
 * more rows are locked than that. All claims of a transaction have 1 MiB of payloads together,
 * behind which nothing more is claimed. */
"CREATE FUNCTION @claim(now timestamptz, lease interval, queues bytea[], floor timestamptz,\n"
"    floor_seq bigint, most integer, newest boolean) RETURNS TABLE (fence bigint,\n"
"    generation bigint, attempt integer, due timestamptz, at timestamptz, seq bigint, id bytea,\n"
"    queue bytea, payload bytea) LANGUAGE plpgsql ROWS 20 AS $$\n"
"#variable_conflict use_column\n"
"DECLARE\n"
"    got integer := 0;\n"
"    room bigint := coalesce(nullif(current_setting('lapse.bytes', true), '')::bigint, 1048576);\n"
"    is_cut boolean := false;\n"
"    this bytea;\n"
"    quota bigint;\n"
"    ids bytea[];\n"
"    ats timestamptz[];\n"
"    sizes integer[];\n"
"    bytes bigint;\n"
"    n integer;\n"
"BEGIN\n"
"    FOR this, quota IN\n"
"        SELECT h.queue, count(*) FROM (\n"
"            SELECT q.queue, w.at, w.seq FROM unnest(queues) q(queue) CROSS JOIN LATERAL (\n"
"                SELECT o.at, o.seq FROM @order o WHERE o.queue = q.queue\n"
"                    AND (o.at, o.seq) >= (floor, floor_seq)\n"
"                    AND o.at <= now AND NOT o.no_more AND most > 0\n"
"                    ORDER BY o.at, o.seq LIMIT most) w\n"
"            WHERE cardinality(queues) > 1 ORDER BY w.at, w.seq LIMIT most) h\n"
"        GROUP BY h.queue\n"
"        UNION ALL SELECT queues[1], most WHERE cardinality(queues) = 1 AND most > 0\n"
"    LOOP\n"
"        is_cut := is_cut OR room <= 0;\n"
"        EXIT WHEN is_cut;\n"
"        IF newest THEN\n"
"            SELECT array_agg(c.id), array_agg(c.at), array_agg(c.size), sum(c.size)\n"
"                INTO ids, ats, sizes, bytes FROM (\n"
"                SELECT o.id, o.at, octet_length(o.payload) AS size FROM @order o\n"
"                WHERE o.queue = this AND (o.at, o.seq) >= (floor, floor_seq)\n"
"                    AND o.at <= now AND NOT o.no_more\n"
"                ORDER BY o.at DESC, o.seq DESC LIMIT quota FOR UPDATE SKIP LOCKED) c;\n"
"        ELSE\n"
"            SELECT array_agg(c.id), array_agg(c.at), array_agg(c.size), sum(c.size)\n"
"                INTO ids, ats, sizes, bytes FROM (\n"
"                SELECT o.id, o.at, octet_length(o.payload) AS size FROM @order o\n"
"                WHERE o.queue = this AND (o.at, o.seq) >= (floor, floor_seq)\n"
"                    AND o.at <= now AND NOT o.no_more\n"
"                ORDER BY o.at, o.seq LIMIT quota FOR UPDATE SKIP LOCKED) c;\n"
"        END IF;\n"
"        CONTINUE WHEN ids IS NULL;\n"
"        n := cardinality(ids);\n"
"        IF bytes > room THEN\n"
"            n := 0;\n"
"            bytes := 0;\n"
"            WHILE n < cardinality(ids) AND bytes < room LOOP\n"
"                n := n + 1;\n"
"                bytes := bytes + coalesce(sizes[n], 0);\n"
"            END LOOP;\n"
"            is_cut := n < cardinality(ids);\n"
"        END IF;\n"
"        IF bytes > 0 THEN\n"
"            room := room - bytes;\n"
"            PERFORM set_config('lapse.bytes', room::text, true);\n"
"        END IF;\n"
"        got := got + n;\n"
"        RETURN QUERY WITH u AS (UPDATE @order o SET fence = nextval('@fence'),\n"
"            attempt = o.attempt + 1, at = now + lease,\n"
"            due = CASE WHEN o.fence IS NULL THEN o.due ELSE o.at END\n"
"            FROM unnest(ids[:n], ats[:n]) WITH ORDINALITY c(id, at, place)\n"
"            WHERE o.id = c.id RETURNING o.fence, o.generation, o.attempt, o.due, c.at,\n"
"            o.seq, o.id, o.queue, o.payload, c.place)\n"
"        SELECT u.fence, u.generation, u.attempt, u.due, u.at, u.seq, u.id, u.queue, u.payload\n"
"            FROM u ORDER BY u.place;\n"
"    END LOOP;\n"
/* When there were fewer than wanted, what is due and was not claimed is locked by somebody. */
"    IF got < most AND NOT is_cut THEN\n"
"        floor := greatest(floor, now + interval '1 microsecond');\n"
"        floor_seq := 0;\n"
"    END IF;\n"
"    RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL::integer, NULL::timestamptz,\n"
"        (SELECT o.at FROM @order o WHERE o.queue = q.queue\n"
"            AND (o.at, o.seq) >= (floor, floor_seq) AND NOT o.no_more\n"
"            ORDER BY o.at, o.seq LIMIT 1),\n"
"        NULL::bigint, NULL::bytea, q.queue, NULL::bytea FROM unnest(queues) q(queue);\n"
"END $$;\n",

/* The queues that have orders, and when the first of each can be claimed: one look at each. */
"CREATE FUNCTION @heads() RETURNS TABLE (queue bytea, at timestamptz) LANGUAGE plpgsql STABLE\n"
"    AS $$\n"
"#variable_conflict use_column\n"
"BEGIN\n"
"    RETURN QUERY WITH RECURSIVE q(queue, at) AS (\n"
"        (SELECT o.queue, o.at FROM @order o WHERE NOT o.no_more\n"
"            ORDER BY o.queue, o.at, o.seq LIMIT 1)\n"
"        UNION ALL SELECT w.queue, w.at FROM q CROSS JOIN LATERAL (\n"
"            SELECT o.queue, o.at FROM @order o WHERE o.queue > q.queue AND NOT o.no_more\n"
"            ORDER BY o.queue, o.at, o.seq LIMIT 1) w)\n"
"    SELECT q.queue, q.at FROM q;\n"
"END $$;\n",

/* The names of the queues that have orders; with `old`, also of those that only had some. */
"CREATE FUNCTION @queues(old boolean) RETURNS bytea[] LANGUAGE plpgsql STABLE AS $$\n"
"BEGIN\n"
"    RETURN ARRAY(WITH RECURSIVE q(queue) AS (\n"
"        (SELECT o.queue FROM @order o ORDER BY o.queue LIMIT 1)\n"
"        UNION ALL SELECT (SELECT o.queue FROM @order o WHERE o.queue > q.queue\n"
"            ORDER BY o.queue LIMIT 1) FROM q WHERE q.queue IS NOT NULL)\n"
"        SELECT queue FROM q WHERE queue IS NOT NULL\n"
"        UNION SELECT queue FROM @dead WHERE old\n"
"        UNION SELECT queue FROM @ended WHERE old);\n"
"END $$;\n",

/* For applications, triggers, other languages. */
"CREATE FUNCTION @schedule(id text, delay interval, queue text DEFAULT '',\n"
"    payload bytea DEFAULT NULL, replace boolean DEFAULT false) RETURNS bigint\n"
"    LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    now timestamptz := clock_timestamp();\n"
"    given text := id;\n"
"    code bytea := convert_to(id, 'UTF8');\n"
"    wait interval := greatest(delay, '0');\n"
"    answer bigint;\n"
"BEGIN\n"
"    IF given IS NULL OR octet_length(code) NOT BETWEEN 1 AND 255 THEN\n"
"        RAISE EXCEPTION 'lapse_schedule: an order id is 1 to 255 bytes'\n"
"            USING ERRCODE = '22023';\n"
"    ELSIF delay IS NULL OR now + delay > now + interval '36525 days' THEN\n"
"        RAISE EXCEPTION 'lapse_schedule: a delay of %: use up to 36525 days', delay\n"
"            USING ERRCODE = '22023';\n"
"    ELSIF queue IS NULL OR octet_length(queue) > 255 THEN\n"
"        RAISE EXCEPTION 'lapse_schedule: the name of a queue is up to 255 bytes'\n"
"            USING ERRCODE = '22023';\n"
"    ELSIF octet_length(payload) > 16777216 THEN\n"
"        RAISE EXCEPTION 'lapse_schedule: a payload of % bytes: use up to 16777216',\n"
"            octet_length(payload) USING ERRCODE = '22023';\n"
"    END IF;\n"
"    wait := (now + wait) - now;\n"
"    SELECT p.answer INTO answer FROM @put(now, code, wait, convert_to(queue, 'UTF8'),\n"
"        CASE WHEN octet_length(payload) > 0 THEN payload END, coalesce(replace, false), 0) p;\n"
"    IF answer = 0 THEN\n"
"        RAISE EXCEPTION 'lapse_schedule: order \"%\" is pending already', given\n"
"            USING ERRCODE = '23505', HINT = 'Cancel it, or call with replace => true.';\n"
"    END IF;\n"
"    RETURN answer;\n"
"END $$;\n",

"CREATE FUNCTION @cancel(id text, generation bigint DEFAULT 0) RETURNS text LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    code integer;\n"
"BEGIN\n"
"    SELECT c.answer INTO code FROM @cancel(clock_timestamp(), convert_to(id, 'UTF8'), generation,\n"
"        0, (SELECT keep * interval '1 microsecond' FROM @meta)) c;\n"
"    RETURN CASE code WHEN 1 THEN 'cancelled' WHEN 3 THEN 'running'\n"
"        WHEN 4 THEN 'done' ELSE 'unknown' END;\n"
"END $$;\n",
NULL};
/* clang-format on */

const char *const *const lp_postgresql_steps[LP_POSTGRESQL_VERSION] = {first_step};

const char *const lp_postgresql_sql[ST_COUNT] = {
#define LP_POSTGRESQL_TEXT(name, types, text) text,
    LP_POSTGRESQL_STATEMENTS(LP_POSTGRESQL_TEXT)
#undef LP_POSTGRESQL_TEXT
};

const char *const lp_postgresql_types[ST_COUNT] = {
#define LP_POSTGRESQL_TYPES(name, types, text) types,
    LP_POSTGRESQL_STATEMENTS(LP_POSTGRESQL_TYPES)
#undef LP_POSTGRESQL_TYPES
};

/* `schema` is NULL or a plain name (letters, digits, underscores), so that it needs no more
 * than quotes. */
static size_t write_name(char *out, char mark, const char *schema)
{
    size_t len = 0;
    const char *parts[] = {mark == '@' && schema ? "\"" : "", mark == '@' && schema ? schema : "",
                           mark == '@' && schema ? "\"." : "", "lapse_"};
    for (int i = 0; i < 4; i++) {
        size_t n = strlen(parts[i]);
        if (out)
            memcpy(out + len, parts[i], n);
        len += n;
    }
    return len;
}

static size_t write_text(char *out, const char *text, const char *schema)
{
    size_t len = 0;
    for (; *text; text++) {
        if (*text == '@' || *text == '~')
            len += write_name(out ? out + len : NULL, *text, schema);
        else if (out)
            out[len++] = *text;
        else
            len++;
    }
    if (out)
        out[len] = '\0';
    return len;
}

char *lp_postgresql_expand(const char *text, const char *schema)
{
    char *out = malloc(write_text(NULL, text, schema) + 1);
    if (out)
        write_text(out, text, schema);
    return out;
}
