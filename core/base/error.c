/* error.c - the last error of this thread, in words.
 *
 * One buffer per thread, written only when something fails. Text from outside is
 * escaped before it gets here. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local lp_detail last;
static _Thread_local char quoted[2][160];
static _Thread_local unsigned turn;

int lp_fail(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last.text, sizeof last.text, format, args);
    va_end(args);
    return code;
}

int lp_fail_memory(void)
{
    return lp_fail(LAPSE_ENOMEM, "out of memory: nothing was changed; try again with more");
}

int lp_fail_system(const char *what, int number)
{
    char text[128];
    if (strerror_r(number, text, sizeof text))
        snprintf(text, sizeof text, "errno %d", number);
    return lp_fail(LAPSE_ESYSTEM, "%s failed: %s", what, text);
}

const char *lapse_error_detail(void)
{
    return last.text;
}

void lp_detail_save(lp_detail *out)
{
    *out = last;
}

void lp_detail_restore(const lp_detail *kept)
{
    last = *kept;
}

const char *lapse_strerror(int code)
{
    switch (code) {
    case LAPSE_OK:
        return "no error";
#define CASE(name, number, short_name, text)                                                       \
    case name:                                                                                     \
        return text;
        LAPSE_ERROR_MAP(CASE)
#undef CASE
    }
    return "unknown error";
}

const char *lapse_error_name(int code)
{
    switch (code) {
#define CASE(name, number, short_name, text)                                                       \
    case name:                                                                                     \
        return short_name;
        LAPSE_ERROR_MAP(CASE)
#undef CASE
    }
    return NULL;
}

#define STRING(x) #x
#define VERSION(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

const char *lapse_version(void)
{
    return VERSION(LAPSE_VERSION_MAJOR, LAPSE_VERSION_MINOR, LAPSE_VERSION_PATCH);
}

size_t lp_text_character(const char *text, size_t left)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    size_t need = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || need > left)
        return 0;
    for (size_t i = 1; i < need; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0; /* overlong, surrogate, or beyond the last code point */
    return need;
}

/* Escape `len` bytes into `size` bytes with the NUL; stops at what does not fit. */
static void escape(char *out, size_t size, const char *text, size_t len)
{
    const unsigned char *in = (const unsigned char *)text;
    size_t used = 0;
    for (size_t i = 0; i < len;) {
        size_t n = lp_text_character(text + i, len - i);
        if (used + (n ? n : 4) >= size)
            break;
        if (n) {
            memcpy(out + used, in + i, n);
            used += n;
            i += n;
        } else {
            snprintf(out + used, size - used, "\\x%02x", in[i++]);
            used += 4;
        }
    }
    out[used] = '\0';
}

void lp_text_clip(char *out, const char *text)
{
    escape(out, LP_TEXT_MAX + 1, text, strnlen(text, LP_TEXT_MAX + 1));
}

const char *lp_text_quote(const char *id, size_t len)
{
    char *out = quoted[turn++ % 2];
    out[0] = '"';
    escape(out + 1, sizeof quoted[0] - 2, id, len);
    size_t end = strlen(out);
    out[end] = '"';
    out[end + 1] = '\0';
    return out;
}
