/* convert.h - Python values to lapse values and back. */
#ifndef LAPSE_PYTHON_CONVERT_H
#define LAPSE_PYTHON_CONVERT_H

#include "binding.h"

/* Each returns 0, or -1 with an exception; `name` is what the caller calls the value. */

/* Seconds (int, float, timedelta) as a delay: below 0 is 0, rounded up, at most 100
 * years. */
int convert_delay(binding_state *state, const char *name, PyObject *value, lapse_ns *out);

/* The same, but None (or NULL) is LAPSE_FOREVER. */
int convert_timeout(binding_state *state, PyObject *value, lapse_ns *out);

/* The same as convert_delay, but below 0 is refused. */
int convert_step(binding_state *state, const char *name, PyObject *value, lapse_ns *out);

/* A duration of a policy or an option: as convert_delay, but below 0 is refused; None is 0,
 * which the library reads as the default. */
int convert_duration(binding_state *state, const char *name, PyObject *value, lapse_ns *out);

/* An aware datetime, or seconds since 1970 as int or float, as a UTC instant. */
int convert_instant(binding_state *state, const char *name, PyObject *value, lapse_ns *out);

/* An int, 0 or more. */
int convert_count(binding_state *state, const char *name, PyObject *value, uint64_t *out);

/* Raise the TypeError "<what>, not <type of value>". Always -1. */
int refuse_type(const char *what, PyObject *value);

/* Raise lapse.Range for an instant that is too far away. Always -1. */
int refuse_instant(binding_state *state, const char *name, PyObject *value);

/* 0 (also for NULL) or an order's generation. */
int convert_generation(PyObject *value, int64_t *out);

/* Nanoseconds as float seconds. */
PyObject *convert_seconds(lapse_ns ns);

/* A borrowed view of a text's bytes; `owner` keeps them and may be NULL. */
typedef struct text {
    const char *bytes; /* NUL-terminated, and may hold NUL before */
    size_t len;
    PyObject *owner;
} text;

/* An order id: str (UTF-8 with surrogateescape) or bytes. Does not judge the bytes. */
int convert_id(binding_state *state, PyObject *value, text *out);

/* A queue's name: as an id, but without NUL; None (or NULL) gives bytes == NULL. */
int convert_queue(binding_state *state, PyObject *value, text *out);

static inline void text_done(text *t)
{
    Py_CLEAR(t->owner);
}

/* Whether a C string would end before the text does. */
bool text_holds_nul(const text *t);

/* Bytes to str, as ids and queues are shown. */
PyObject *text_object(const char *bytes, size_t len);

#endif
