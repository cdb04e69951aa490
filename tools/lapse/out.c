/* out.c - what the commands print: records, rows, progress.
 *
 * JSON is one object a line. A string that is not UTF-8 is written with U+FFFD in place of what
 * is not, and beside it `<name>_hex` holds its bytes. In text nothing of an order reaches the
 * terminal that could move the cursor or end the line. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

/* -- Bytes ------------------------------------------------------------------------- */

/* The bytes of the UTF-8 sequence at `s`, and its code point; 0: it is none. */
static size_t decode(const unsigned char *s, size_t len, uint32_t *point)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t size = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
    if (size == 0 || size > len)
        return 0;
    uint32_t value = size == 1 ? *s : *s & (0x7Fu >> size);
    for (size_t i = 1; i < size; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        value = value << 6 | (s[i] & 0x3Fu);
    }
    if (value < least[size] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
        return 0;
    *point = value;
    return size;
}

/* Signs that control a terminal, the line, or the direction of writing. */
static bool controls(uint32_t point)
{
    return point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x61C ||
           (point >= 0x200E && point <= 0x200F) || (point >= 0x2028 && point <= 0x202E) ||
           (point >= 0x2066 && point <= 0x2069);
}

static void print_escaped(FILE *out, const unsigned char *s, size_t size)
{
    static const char named[] = "\nn\tt\rr\\\\";
    for (const char *pair = named; size == 1 && *pair != '\0'; pair += 2) {
        if ((unsigned char)*pair == *s) {
            fprintf(out, "\\%c", pair[1]);
            return;
        }
    }
    for (size_t i = 0; i < size; i++)
        fprintf(out, "\\x%02x", s[i]);
}

/* `also`: one more sign that is escaped. */
static void print_readable(FILE *out, const unsigned char *s, size_t len, uint32_t also)
{
    uint32_t point = 0;
    for (size_t i = 0; i < len;) {
        size_t size = decode(s + i, len - i, &point);
        if (size == 0 || controls(point) || point == also)
            print_escaped(out, s + i, size > 0 ? size : 1);
        else
            fwrite(s + i, 1, size, out);
        i += size > 0 ? size : 1;
    }
}

void cli_print_bytes(FILE *out, const void *bytes, size_t len)
{
    print_readable(out, bytes, len, '\\');
}

void cli_print_text(FILE *out, const char *text)
{
    print_readable(out, (const unsigned char *)text, strlen(text), 0);
}

/* A JSON string; false when some of it was not UTF-8 and is U+FFFD now. */
static bool json_string(const void *bytes, size_t len)
{
    const unsigned char *s = bytes;
    uint32_t point = 0;
    bool exact = true;
    putchar('"');
    for (size_t i = 0; i < len;) {
        size_t size = decode(s + i, len - i, &point);
        if (size == 0)
            fputs("\\ufffd", stdout);
        else if (point == '"' || point == '\\')
            printf("\\%c", (int)point);
        else if (controls(point))
            printf("\\u%04x", (unsigned)point);
        else
            fwrite(s + i, 1, size, stdout);
        exact &= size > 0;
        i += size > 0 ? size : 1;
    }
    putchar('"');
    return exact;
}

/* -- Records ----------------------------------------------------------------------- */

void cli_begin(cli *c)
{
    c->fields = false;
    if (c->o.json)
        putchar('{');
    else if (c->records > 0)
        putchar('\n');
    c->records++;
}

void cli_end(cli *c)
{
    if (c->o.json)
        puts("}");
}

/* The name of a field, with what stands before its value. In text "_" is a space. */
static void name_field(cli *c, const char *name, const char *unit)
{
    if (c->o.json) {
        printf("%s\"%s%s\": ", c->fields ? ", " : "", name, unit);
    } else {
        char text[32];
        snprintf(text, sizeof text, "%s", name);
        for (char *p = text; *p != '\0'; p++)
            if (*p == '_')
                *p = ' ';
        printf("%-14s ", text);
    }
    c->fields = true;
}

static void end_field(const cli *c)
{
    if (!c->o.json)
        putchar('\n');
}

static void put_hex(cli *c, const char *name, const unsigned char *bytes, size_t len)
{
    name_field(c, name, "_hex");
    putchar('"');
    for (size_t i = 0; i < len; i++)
        printf("%02x", bytes[i]);
    putchar('"');
}

void cli_put_bytes(cli *c, const char *name, const void *bytes, size_t len)
{
    name_field(c, name, "");
    if (!c->o.json)
        cli_print_bytes(stdout, bytes, len);
    else if (!json_string(bytes, len))
        put_hex(c, name, bytes, len);
    end_field(c);
}

void cli_put_word(cli *c, const char *name, const char *word)
{
    if (word != NULL)
        cli_put_bytes(c, name, word, strlen(word));
}

void cli_put_text(cli *c, const char *name, const char *text)
{
    if (text == NULL || c->o.json) {
        cli_put_word(c, name, text);
        return;
    }
    name_field(c, name, "");
    cli_print_text(stdout, text);
    end_field(c);
}

void cli_put_int(cli *c, const char *name, int64_t value)
{
    name_field(c, name, "");
    printf("%" PRId64, value);
    end_field(c);
}

void cli_put_count(cli *c, const char *name, uint64_t value)
{
    name_field(c, name, "");
    printf("%" PRIu64, value);
    end_field(c);
}

void cli_put_rate(cli *c, const char *name, double per_second)
{
    name_field(c, name, "_per_second");
    printf("%.1f", per_second);
    end_field(c);
}

void cli_put_flag(cli *c, const char *name, bool value)
{
    name_field(c, name, "");
    fputs(c->o.json ? (value ? "true" : "false") : (value ? "yes" : "no"), stdout);
    end_field(c);
}

void cli_put_instant(cli *c, const char *name, lapse_ns utc)
{
    cli_instant_text text;
    cli_put_word(c, name, cli_instant(utc, c->o.json, text));
}

void cli_put_span(cli *c, const char *name, lapse_ns ns)
{
    cli_span_text text;
    name_field(c, name, "_seconds");
    if (c->o.json)
        printf("%" PRId64 ".%09" PRId64, ns / LAPSE_SECONDS(1), ns % LAPSE_SECONDS(1));
    else
        fputs(cli_span(ns, text), stdout);
    end_field(c);
}

void cli_say(cli *c, const char *id, const char *name, const char *word)
{
    if (c->o.json) {
        cli_begin(c);
        cli_put_word(c, "id", id);
        cli_put_word(c, name, word);
        cli_end(c);
        return;
    }
    cli_print_bytes(stdout, id, strlen(id));
    printf(" %s\n", word);
}

/* -- Orders ------------------------------------------------------------------------ */

void cli_put_info(cli *c, const lapse_info *info)
{
    bool ended = info->state == LAPSE_STATE_DONE || info->state == LAPSE_STATE_DEAD;
    cli_put_bytes(c, "id", info->id, info->id_len);
    cli_put_word(c, "state", cli_state_word(info->state));
    cli_put_word(c, "queue", info->queue);
    cli_put_instant(c, "due", info->due);
    if (info->state == LAPSE_STATE_PENDING)
        cli_put_span(c, "remaining", info->remaining);
    if (ended)
        cli_put_instant(c, "ended", info->ended);
    cli_put_int(c, "generation", info->generation);
    cli_put_int(c, "attempt", info->attempt);
    if (info->reason != LAPSE_REASON_NONE)
        cli_put_word(c, "reason", cli_reason_word(info->reason));
    cli_put_text(c, "error", info->error);
    cli_put_count(c, "payload_bytes", info->payload_len);
}

static void print_queue(const char *queue)
{
    if (*queue == '\0')
        fputs("-", stdout);
    else
        cli_print_bytes(stdout, queue, strlen(queue));
}

static void json_row(cli *c, const lapse_info *info)
{
    cli_begin(c);
    cli_put_info(c, info);
    cli_end(c);
}

void cli_list_heading(cli *c)
{
    if (!c->o.json)
        printf("%-7s  %-24s  %8s  %s  %s\n", "STATE", "DUE", "IN", "ID", "QUEUE");
}

void cli_list_row(cli *c, const lapse_info *info)
{
    cli_instant_text due;
    cli_span_text in;
    if (c->o.json) {
        json_row(c, info);
        return;
    }
    printf("%-7s  %s  %8s  ", cli_state_word(info->state), cli_instant(info->due, false, due),
           info->state == LAPSE_STATE_PENDING ? cli_span(info->remaining, in) : "-");
    cli_print_bytes(stdout, info->id, info->id_len);
    fputs("  ", stdout);
    print_queue(info->queue);
    putchar('\n');
}

void cli_dead_heading(cli *c)
{
    if (!c->o.json)
        printf("%-8s  %-24s  %5s  %s  %s  %s\n", "REASON", "DIED", "TRIES", "ID", "QUEUE", "ERROR");
}

void cli_dead_row(cli *c, const lapse_info *info)
{
    cli_instant_text ended;
    if (c->o.json) {
        json_row(c, info);
        return;
    }
    printf("%-8s  %s  %5d  ", cli_reason_word(info->reason), cli_instant(info->ended, false, ended),
           info->attempt);
    cli_print_bytes(stdout, info->id, info->id_len);
    fputs("  ", stdout);
    print_queue(info->queue);
    fputs("  ", stdout);
    if (info->error != NULL)
        cli_print_text(stdout, info->error);
    putchar('\n');
}

/* -- Progress ---------------------------------------------------------------------- */

bool cli_output_seen(void)
{
    return isatty(STDOUT_FILENO) != 0;
}

void cli_progress(cli *c, const char *verb, int64_t done, int64_t total)
{
    lapse_ns now = lapse_now(c->s);
    if (!c->listening || (c->told != 0 && now - c->told < LAPSE_MS(200)))
        return;
    c->told = now;
    if (total > 0)
        fprintf(stderr, "\r%s %" PRId64 " of %" PRId64 "\033[K", verb, done, total);
    else
        fprintf(stderr, "\r%s %" PRId64 "\033[K", verb, done);
    fflush(stderr);
}

void cli_progress_end(cli *c)
{
    if (c->listening && c->told != 0)
        fputs("\r\033[K", stderr);
    c->told = 0;
}
