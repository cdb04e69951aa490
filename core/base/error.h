/* error.h - the last error of this thread, in words. */
#ifndef LP_ERROR_H
#define LP_ERROR_H

#include "lapse.h"

/* Keep a sentence for lapse_error_detail and return `code`. */
int lp_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a failed allocation: keeps a fixed sentence. */
int lp_fail_memory(void);

/* The same for a failed system call: adds the text of `number`, an errno. */
int lp_fail_system(const char *what, int number);

/* The sentence, kept while hooks run that may fail at something of their own. */
typedef struct lp_detail {
    char text[512];
} lp_detail;
void lp_detail_save(lp_detail *out);
void lp_detail_restore(const lp_detail *kept);

#define LP_TEXT_MAX 1000 /* bytes of an error text that are kept */

/* Copy text that comes from outside: clipped to LP_TEXT_MAX bytes, control characters
 * and broken UTF-8 written as \xNN. `out` has LP_TEXT_MAX + 1 bytes. */
void lp_text_clip(char *out, const char *text);

/* How many bytes at `text` are one printable UTF-8 character; 0 when they are none. */
size_t lp_text_character(const char *text, size_t left);

/* An id for a message: quoted, escaped and clipped; a buffer of this thread that the next
 * call but one overwrites. */
const char *lp_text_quote(const char *id, size_t len);

#endif
