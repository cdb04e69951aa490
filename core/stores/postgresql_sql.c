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

/* An order is looked for by its id, claimed by (queue, at, seq), settled by its fence. Both
 * tables that fill and empty fast are cleaned often: what is dead costs each claim. */
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

/* The same under max_pending; -1: it is full. `letter` is what died to make room. */
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
"            SELECT * INTO oldest FROM @order o WHERE o.fence IS NULL OR o.at <= now\n"
"                ORDER BY o.seq LIMIT 1 FOR UPDATE;\n"
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
"    unstarted bigint, keep interval, wait interval) RETURNS integer LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o record;\n"
"BEGIN\n"
"    SELECT fence, at, generation INTO o FROM @order WHERE id = old_id FOR UPDATE;\n"
"    IF NOT FOUND THEN\n"
"        RETURN @fate(now, old_id, of_generation, keep);\n"
"    ELSIF of_generation <> 0 AND of_generation <> o.generation THEN\n"
"        RETURN 0;\n"
"    ELSIF o.fence IS NOT NULL AND o.at > now AND o.fence <> unstarted THEN\n"
"        RETURN 3;\n"
"    END IF;\n"
"    UPDATE @order SET at = now + wait, due = now + wait, seq = nextval('@seq'), fence = NULL,\n"
"        attempt = CASE WHEN o.fence IS NOT NULL AND o.at > now THEN greatest(attempt - 1, 0)\n"
"        ELSE attempt END WHERE id = old_id;\n"
"    RETURN 2;\n"
"END $$;\n",

/* Settlements of one claim: 0 done, 1 it ended as cancelled, null: no such claim is held. */
"CREATE FUNCTION @again(now timestamptz, of_fence bigint, wait interval, pause interval,\n"
"    counted boolean, keep interval) RETURNS integer LANGUAGE plpgsql AS $$\n"
"DECLARE\n"
"    o @order;\n"
"BEGIN\n"
"    SELECT * INTO o FROM @order WHERE fence = of_fence FOR UPDATE;\n"
"    IF NOT FOUND THEN\n"
"        RETURN NULL;\n"
"    ELSIF o.no_more THEN\n"
"        IF NOT counted THEN\n"
"            o.attempt := greatest(o.attempt - 1, 0);\n"
"        END IF;\n"
"        PERFORM @end(now, o, keep);\n"
"        RETURN 1;\n"
"    END IF;\n"
"    UPDATE @order SET at = now + greatest(wait, pause), due = now + wait, fence = NULL,\n"
"        seq = CASE WHEN counted THEN nextval('@seq') ELSE seq END,\n"
"        attempt = CASE WHEN counted THEN attempt ELSE greatest(attempt - 1, 0) END\n"
"        WHERE fence = of_fence;\n"
"    RETURN 0;\n"
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
"    OUT dropped bigint) LANGUAGE plpgsql AS $$\n"
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
"            SELECT * INTO oldest FROM @order w WHERE w.fence IS NULL OR w.at <= now\n"
"                ORDER BY w.seq LIMIT 1 FOR UPDATE;\n"
"        END IF;\n"
"        IF oldest.id IS NULL THEN\n"
"            answer := -1;\n"
"            RETURN;\n"
"        END IF;\n"
"    END IF;\n"
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

/* Claim up to `most` orders of the queues, from `floor` on, those that fell due first (or
 * `newest`: last); then one row of which only `at` is set: when the next can be. Among several
 * queues it is settled first how many each gives, so that no more rows are locked than that. */
"CREATE FUNCTION @claim(now timestamptz, lease interval, queues bytea[], floor timestamptz,\n"
"    most integer, newest boolean) RETURNS TABLE (fence bigint, generation bigint,\n"
"    attempt integer, due timestamptz, at timestamptz, id bytea, queue bytea, payload bytea)\n"
"    LANGUAGE plpgsql ROWS 20 AS $$\n"
"#variable_conflict use_column\n"
"DECLARE\n"
"    got bigint := 0;\n"
"    beyond timestamptz := floor;\n"
"    this bytea;\n"
"    n bigint;\n"
"    quota bigint;\n"
"BEGIN\n"
"    FOR this, quota IN\n"
"        SELECT h.queue, count(*) FROM (\n"
"            SELECT q.queue, w.at, w.seq FROM unnest(queues) q(queue) CROSS JOIN LATERAL (\n"
"                SELECT o.at, o.seq FROM @order o WHERE o.queue = q.queue AND o.at >= floor\n"
"                    AND o.at <= now AND NOT o.no_more AND most > 0\n"
"                    ORDER BY o.at, o.seq LIMIT most) w\n"
"            WHERE cardinality(queues) > 1 ORDER BY w.at, w.seq LIMIT most) h\n"
"        GROUP BY h.queue\n"
"        UNION ALL SELECT queues[1], most WHERE cardinality(queues) = 1 AND most > 0\n"
"    LOOP\n"
"        IF newest THEN\n"
"            RETURN QUERY WITH c AS MATERIALIZED (SELECT o.id, o.at, o.seq FROM @order o\n"
"                WHERE o.queue = this AND o.at >= floor AND o.at <= now AND NOT o.no_more\n"
"                ORDER BY o.at DESC, o.seq DESC LIMIT quota FOR UPDATE SKIP LOCKED),\n"
"            u AS (UPDATE @order o SET fence = nextval('@fence'), attempt = o.attempt + 1,\n"
"                due = CASE WHEN o.fence IS NULL THEN o.due ELSE o.at END, at = now + lease\n"
"                FROM c WHERE o.id = c.id RETURNING o.fence, o.generation, o.attempt, o.due,\n"
"                c.at, o.id, o.queue, o.payload, c.seq)\n"
"            SELECT u.fence, u.generation, u.attempt, u.due, u.at, u.id, u.queue, u.payload\n"
"                FROM u ORDER BY u.at DESC, u.seq DESC;\n"
"        ELSE\n"
"            RETURN QUERY WITH c AS MATERIALIZED (SELECT o.id, o.at, o.seq FROM @order o\n"
"                WHERE o.queue = this AND o.at >= floor AND o.at <= now AND NOT o.no_more\n"
"                ORDER BY o.at, o.seq LIMIT quota FOR UPDATE SKIP LOCKED),\n"
"            u AS (UPDATE @order o SET fence = nextval('@fence'), attempt = o.attempt + 1,\n"
"                due = CASE WHEN o.fence IS NULL THEN o.due ELSE o.at END, at = now + lease\n"
"                FROM c WHERE o.id = c.id RETURNING o.fence, o.generation, o.attempt, o.due,\n"
"                c.at, o.id, o.queue, o.payload, c.seq)\n"
"            SELECT u.fence, u.generation, u.attempt, u.due, u.at, u.id, u.queue, u.payload\n"
"                FROM u ORDER BY u.at, u.seq;\n"
"        END IF;\n"
"        GET DIAGNOSTICS n = ROW_COUNT;\n"
"        got := got + n;\n"
"    END LOOP;\n"
/* When there were fewer than wanted, what is due and was not claimed is locked by somebody. */
"    IF most > 0 AND got < most THEN\n"
"        beyond := greatest(floor, now + interval '1 microsecond');\n"
"    END IF;\n"
"    RETURN QUERY SELECT NULL::bigint, NULL::bigint, NULL::integer, NULL::timestamptz,\n"
"        (SELECT min(w.at) FROM unnest(queues) q(queue) CROSS JOIN LATERAL (\n"
"            SELECT o.at FROM @order o WHERE o.queue = q.queue AND o.at >= beyond\n"
"                AND NOT o.no_more ORDER BY o.at, o.seq LIMIT 1) w),\n"
"        NULL::bytea, NULL::bytea, NULL::bytea;\n"
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
