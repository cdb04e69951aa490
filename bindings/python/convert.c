/* convert.c - Python values to lapse values and back.
 *
 * Integers and timedeltas are converted in integers: a large int keeps its last digit.
 * Floats are rounded up, by lapse_ns_from_seconds where it fits. bool is no number here:
 * schedule(id, True, f) is a mistake. */
#include "convert.h"

#include <string.h>

#define SECOND INT64_C(1000000000)
#define DAY INT64_C(86400) /* in seconds */
#define DELAY_MAX_SECONDS (LAPSE_DELAY_MAX / SECOND)
#define INSTANT_MAX_SECONDS (INT64_MAX / SECOND - 1)

static int refuse_range(binding_state *state, const char *name, PyObject *value)
{
    raise_text(state, LAPSE_ERANGE,
               "%s: %R is out of range: a time is a number of seconds, at most 100 years", name,
               value);
    return -1;
}

/* The finer unit in which a number of this size is an instant about now; or NULL. */
static const char *finer_unit(double number)
{
    if (number >= 1e11 && number < 1e14)
        return "milliseconds: divide by 1000";
    if (number >= 1e14 && number < 1e17)
        return "microseconds: divide by 1e6";
    if (number >= 1e17 && number < 1e20)
        return "nanoseconds: divide by 1e9";
    return NULL;
}

int refuse_instant(binding_state *state, const char *name, PyObject *value)
{
    const char *rule = "an instant is seconds since 1970, within 100 years from now";
    double number = PyFloat_AsDouble(value);
    if (number == -1 && PyErr_Occurred())
        PyErr_Clear(); /* a datetime, or an int that is too large for any unit */
    const char *unit = finer_unit(number);
    if (unit)
        raise_text(state, LAPSE_ERANGE, "%s: %s; %R looks like %s", name, rule, value, unit);
    else
        raise_text(state, LAPSE_ERANGE, "%s: %s, not %R", name, rule, value);
    return -1;
}

int refuse_type(const char *what, PyObject *value)
{
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(value), "__name__");
    if (type)
        PyErr_Format(PyExc_TypeError, "%s, not %U", what, type);
    Py_XDECREF(type);
    return -1;
}

/* The same, with the name of the argument in front. */
static int refuse_named(const char *name, const char *what, PyObject *value)
{
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(value), "__name__");
    if (type)
        PyErr_Format(PyExc_TypeError, "%s: %s, not %U", name, what, type);
    Py_XDECREF(type);
    return -1;
}

/* The exact types are asked for first, here and below: that needs no call into CPython. */
static bool is_int(PyObject *value)
{
    return PyLong_CheckExact(value) || (PyLong_Check(value) && !PyBool_Check(value));
}

/* A whole number of seconds, saturated at the ends of int64. */
static int whole_seconds(PyObject *value, int64_t *out)
{
    int overflow;
    long long n = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (n == -1 && !overflow && PyErr_Occurred())
        return -1;
    *out = overflow > 0 ? INT64_MAX : overflow < 0 ? INT64_MIN : n;
    return 0;
}

static int int_attribute(binding_state *state, PyObject *value, binding_name name, int64_t *out)
{
    PyObject *n = attribute(state, value, name);
    if (!n)
        return -1;
    *out = PyLong_AsLongLong(n);
    Py_DECREF(n);
    return PyErr_Occurred() ? -1 : 0;
}

/* A timedelta as whole seconds and the nanoseconds above them. */
static int timedelta_parts(binding_state *state, PyObject *value, int64_t *seconds, int64_t *ns)
{
    int64_t days, rest, micros;
    if (int_attribute(state, value, NAME_days, &days) ||
        int_attribute(state, value, NAME_seconds, &rest) ||
        int_attribute(state, value, NAME_microseconds, &micros))
        return -1;
    *seconds = days * DAY + rest;
    *ns = micros * 1000;
    return 0;
}

/* Seconds and nanoseconds above them as a delay. */
static int delay_of_parts(binding_state *state, const char *name, PyObject *value, int64_t seconds,
                          int64_t ns, lapse_ns *out)
{
    if (seconds < 0) {
        *out = 0;
        return 0;
    }
    if (seconds > DELAY_MAX_SECONDS || (seconds == DELAY_MAX_SECONDS && ns))
        return refuse_range(state, name, value);
    *out = seconds * SECOND + ns;
    return 0;
}

static int refuse_delay(binding_state *state, const char *name, PyObject *value)
{
    int is_datetime = PyObject_IsInstance(value, state->datetime_type);
    if (is_datetime < 0)
        return -1;
    bool is_instant = is_datetime && strcmp(name, "delay") == 0;
    return refuse_named(name,
                        is_instant ? "it counts from now on, and schedule_at takes an instant"
                                   : "a time is seconds as int or float, or a timedelta",
                        value);
}

int convert_delay(binding_state *state, const char *name, PyObject *value, lapse_ns *out)
{
    if (!PyLong_CheckExact(value) && PyFloat_Check(value)) {
        double seconds = PyFloat_AsDouble(value);
        return lapse_ns_from_seconds(seconds, out) < 0 ? refuse_range(state, name, value) : 0;
    }
    int64_t seconds, ns = 0;
    if (is_int(value)) {
        if (whole_seconds(value, &seconds))
            return -1;
        return delay_of_parts(state, name, value, seconds, ns, out);
    }
    int is_delta = PyObject_IsInstance(value, state->timedelta_type);
    if (is_delta < 0)
        return -1;
    if (!is_delta)
        return refuse_delay(state, name, value);
    if (timedelta_parts(state, value, &seconds, &ns))
        return -1;
    return delay_of_parts(state, name, value, seconds, ns, out);
}

int convert_timeout(binding_state *state, PyObject *value, lapse_ns *out)
{
    if (!value || value == Py_None) {
        *out = LAPSE_FOREVER;
        return 0;
    }
    return convert_delay(state, "timeout", value, out);
}

/* 1 when a value that convert_delay made 0 of is below it, 0 when not, -1 on an error. */
static int is_below_zero(binding_state *state, PyObject *value)
{
    PyObject *zero = PyFloat_Check(value) || is_int(value)
                         ? PyLong_FromLong(0)
                         : PyObject_CallNoArgs(state->timedelta_type);
    int below = zero ? PyObject_RichCompareBool(value, zero, Py_LT) : -1;
    Py_XDECREF(zero);
    return below;
}

static int refuse_below_zero(binding_state *state, const char *name, PyObject *value,
                             const char *why, lapse_ns *out)
{
    if (convert_delay(state, name, value, out))
        return -1;
    int below = *out > 0 ? 0 : is_below_zero(state, value);
    if (below > 0)
        raise_text(state, LAPSE_ERANGE, "%s: %R is below 0: %s", name, value, why);
    return below ? -1 : 0;
}

int convert_step(binding_state *state, const char *name, PyObject *value, lapse_ns *out)
{
    return refuse_below_zero(state, name, value, "this clock only goes forward", out);
}

int convert_duration(binding_state *state, const char *name, PyObject *value, lapse_ns *out)
{
    *out = 0;
    return value == Py_None ? 0
                            : refuse_below_zero(state, name, value, "use 0 or more seconds", out);
}

/* Seconds since 1970 with a fraction, rounded up to the nanosecond. */
static int instant_of_double(binding_state *state, const char *name, PyObject *value, lapse_ns *out)
{
    double seconds = PyFloat_AsDouble(value);
    if (!(seconds < (double)INSTANT_MAX_SECONDS && seconds > -(double)INSTANT_MAX_SECONDS))
        return refuse_instant(state, name, value); /* NaN comes here too */
    int64_t whole = (int64_t)seconds;
    double above = (seconds - (double)whole) * 1e9; /* of the sign of `seconds` */
    int64_t ns = (int64_t)above;
    *out = whole * SECOND + ns + ((double)ns < above);
    return 0;
}

static int instant_of_parts(binding_state *state, const char *name, PyObject *value,
                            int64_t seconds, int64_t ns, lapse_ns *out)
{
    if (seconds > INSTANT_MAX_SECONDS || seconds < -INSTANT_MAX_SECONDS)
        return refuse_instant(state, name, value);
    *out = seconds * SECOND + ns;
    return 0;
}

static int instant_of_datetime(binding_state *state, const char *name, PyObject *value,
                               lapse_ns *out)
{
    PyObject *offset = call_method(state, value, NAME_utcoffset);
    if (!offset)
        return -1;
    bool naive = offset == Py_None;
    Py_DECREF(offset);
    if (naive) {
        raise_text(state, LAPSE_EINVAL,
                   "%s: %R has no time zone: give an aware datetime, for instance "
                   "datetime.now(timezone.utc) + timedelta(minutes=30)",
                   name, value);
        return -1;
    }
    PyObject *since = PyNumber_Subtract(value, state->epoch);
    if (!since)
        return -1;
    int64_t seconds, ns;
    int rc = timedelta_parts(state, since, &seconds, &ns);
    Py_DECREF(since);
    return rc ? rc : instant_of_parts(state, name, value, seconds, ns, out);
}

int convert_instant(binding_state *state, const char *name, PyObject *value, lapse_ns *out)
{
    if (PyFloat_Check(value))
        return instant_of_double(state, name, value, out);
    if (is_int(value)) {
        int64_t seconds;
        if (whole_seconds(value, &seconds))
            return -1;
        return instant_of_parts(state, name, value, seconds, 0, out);
    }
    int is_datetime = PyObject_IsInstance(value, state->datetime_type);
    if (is_datetime < 0)
        return -1;
    if (!is_datetime)
        return refuse_named(name, "an instant is an aware datetime, or seconds since 1970", value);
    return instant_of_datetime(state, name, value, out);
}

int convert_generation(PyObject *value, int64_t *out)
{
    *out = LAPSE_ANY;
    if (!value)
        return 0;
    if (!is_int(value))
        return refuse_type("a generation is the int that schedule returned", value);
    *out = PyLong_AsLongLong(value);
    return *out == -1 && PyErr_Occurred() ? -1 : 0;
}

int convert_count(binding_state *state, const char *name, PyObject *value, uint64_t *out)
{
    if (!is_int(value)) {
        PyErr_Format(PyExc_TypeError, "%s is an int, 0 or more, got %R", name, value);
        return -1;
    }
    *out = PyLong_AsUnsignedLongLong(value);
    if (*out != UINT64_MAX || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        raise_text(state, LAPSE_ERANGE, "%s: %R is out of range: use 0 to 2**64 - 1", name, value);
    }
    return -1;
}

PyObject *convert_seconds(lapse_ns ns)
{
    return PyFloat_FromDouble((double)ns / 1e9);
}

/* A str with bytes that came in by surrogateescape. */
static int text_of_escaped(binding_state *state, PyObject *value, text *out)
{
    PyErr_Clear();
    out->owner = PyUnicode_AsEncodedString(value, "utf-8", "surrogateescape");
    if (out->owner) {
        out->bytes = PyBytes_AsString(out->owner);
        out->len = (size_t)PyBytes_Size(out->owner);
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        PyErr_Clear();
        raise_text(state, LAPSE_EID, "%R cannot be written as UTF-8", value);
    }
    return -1;
}

static int text_of_str(binding_state *state, PyObject *value, text *out)
{
    Py_ssize_t len;
    out->bytes = PyUnicode_AsUTF8AndSize(value, &len);
    if (out->bytes) {
        out->len = (size_t)len;
        return 0;
    }
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        return text_of_escaped(state, value, out);
    return -1;
}

int convert_id(binding_state *state, PyObject *value, text *out)
{
    *out = (text){0};
    if (PyUnicode_CheckExact(value) || PyUnicode_Check(value))
        return text_of_str(state, value, out);
    if (PyBytes_Check(value)) {
        out->bytes = PyBytes_AsString(value);
        out->len = (size_t)PyBytes_Size(value);
        return 0;
    }
    if (PyLong_Check(value) || PyFloat_Check(value)) {
        PyErr_Format(PyExc_TypeError, "an order id is text: write the number %R as str(%R)", value,
                     value);
        return -1;
    }
    return refuse_type("an order id is str or bytes", value);
}

int convert_queue(binding_state *state, PyObject *value, text *out)
{
    *out = (text){0};
    if (!value || value == Py_None)
        return 0;
    if (!PyUnicode_Check(value))
        return refuse_type("a queue's name is str", value);
    if (text_of_str(state, value, out))
        return -1;
    if (!text_holds_nul(out))
        return 0;
    text_done(out);
    raise_text(state, LAPSE_EINVAL, "a queue's name holds no NUL: %R", value);
    return -1;
}

bool text_holds_nul(const text *t)
{
    return t->len && memchr(t->bytes, 0, t->len);
}

PyObject *text_object(const char *bytes, size_t len)
{
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)len, "surrogateescape");
}
