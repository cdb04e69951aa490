/* story.c - see story.h. */
#include "sim/story.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 1 << 18, LINE = 512, PATIENCE = 60 /* seconds for one life */ };

static char text[TEXT];
static size_t length;
static int depth;
static char head[128];

/* The sanitizers' way to say that they are about to end the process; not there without. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void tell(void)
{
    if (write(STDERR_FILENO, head, strlen(head)) < 0 || write(STDERR_FILENO, text, length) < 0)
        return;
    length = 0;
}

static void tell_and_die(int number)
{
    static const char crashed[] = "*** it crashed or hung here\n";
    tell();
    if (write(STDERR_FILENO, crashed, sizeof crashed - 1) < 0)
        _exit(1);
    signal(number, SIG_DFL);
    raise(number);
}

void story_open(void)
{
    signal(SIGALRM, tell_and_die);
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(tell);
        return;
    }
    signal(SIGSEGV, tell_and_die);
    signal(SIGBUS, tell_and_die);
    signal(SIGABRT, tell_and_die);
}

void story_begin(uint64_t seed)
{
    (void)snprintf(head, sizeof head, "\nthe life LAPSE_SEED=%llu LAPSE_LIVES=1:\n",
                   (unsigned long long)seed);
    length = 0;
    depth = 0;
    alarm(PATIENCE);
}

void story_nest(int by)
{
    depth += by;
}

static void add(const char *format, va_list args)
{
    if (length > TEXT - LINE) { /* Only the end of a long story is told. */
        memmove(text, text + length / 2, length - length / 2);
        length -= length / 2;
    }
    size_t indent = 2 * (size_t)depth;
    memset(text + length, ' ', indent);
    length += indent;
    int n = vsnprintf(text + length, LINE - 64, format, args);
    length += (size_t)(n < LINE - 64 ? n : LINE - 65);
    text[length++] = '\n';
}

void story(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add(format, args);
    va_end(args);
}

void story_fail(const char *format, ...)
{
    va_list args;
    depth = 0;
    story("*** does not hold:");
    va_start(args, format);
    add(format, args);
    va_end(args);
    tell();
    _exit(1);
}
