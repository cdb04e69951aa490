/* opener.c - opens a durable store on a thread of its own, for a host that must not wait.
 *
 * What can end without the program's doing is tried again, ever more rarely, until the store opens
 * or the scheduler is closed: a lock, a server that is away or refuses, a full disk. The library's
 * scheduler is handed over to the Lua state's thread, which then uses it
 * as if it had opened it. */
#include "glue.h"
#include "thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Between two attempts: each pause is twice the one before. */
static const lapse_ns FIRST_PAUSE = LAPSE_MS(500), LONGEST_PAUSE = LAPSE_SECONDS(10);

struct opener {
    scheduler *s;
    lapse_options options;
    char *url;
    pthread_t thread;
    int bell; /* the thread is to end */
    int news; /* an attempt has ended */

    pthread_mutex_t lock; /* guards all below */
    bool quit, ended;     /* the thread is to end; it has */
    int code;             /* of the last attempt; 0: none has failed */
    char *words;          /* what it said */
    lapse *made;          /* it is open */
};

/* -- The thread -- */

/* Whether the same URL and options will never do. */
static bool is_hopeless(int code)
{
    return code == LAPSE_EURL || code == LAPSE_ESTORE || code == LAPSE_EINVAL ||
           code == LAPSE_ERANGE || code == LAPSE_EUNSUPPORTED;
}

/* Under the lock, which it drops meanwhile. */
static void attempt(opener *o)
{
    lapse *made = NULL;
    pthread_mutex_unlock(&o->lock);
    int code = lapse_open(o->url, &o->options, &made);
    char *words = code < 0 ? strdup(lapse_error_detail()) : NULL;
    pthread_mutex_lock(&o->lock);
    free(o->words);
    o->words = words;
    o->code = code;
    o->made = made;
    o->ended = o->made || is_hopeless(code);
    bell_ring(o->news);
    glue_ring(o->s);
}

static void *serve(void *arg)
{
    opener *o = arg;
    lapse_ns pause = FIRST_PAUSE;
    pthread_mutex_lock(&o->lock);
    while (!o->quit && !o->ended) {
        attempt(o);
        if (o->ended)
            break;
        pthread_mutex_unlock(&o->lock);
        bell_wait(o->bell, pause);
        pause = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
        pthread_mutex_lock(&o->lock);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

/* -- Begin and end -- */

static void free_opener(opener *o)
{
    if (o->bell >= 0)
        close(o->bell);
    if (o->news >= 0)
        close(o->news);
    pthread_mutex_destroy(&o->lock);
    free(o->words);
    free(o->url);
    free(o);
}

static opener *new_opener(scheduler *s, const char *url, const lapse_options *options)
{
    opener *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->s = s;
    o->options = *options;
    o->url = strdup(url);
    o->bell = bell_open();
    o->news = bell_open();
    pthread_mutex_init(&o->lock, NULL);
    return o;
}

int glue_start_opener(scheduler *s, const char *url, const lapse_options *options)
{
    opener *o = new_opener(s, url, options);
    if (!o)
        return ENOMEM;
    bool fine = o->url && o->bell >= 0 && o->news >= 0;
    int number = fine ? thread_start(&o->thread, serve, o) : errno;
    if (number)
        free_opener(o);
    else
        s->opener = o;
    return number;
}

static void join(opener *o)
{
    pthread_mutex_lock(&o->lock);
    o->quit = true;
    pthread_mutex_unlock(&o->lock);
    bell_ring(o->bell);
    pthread_join(o->thread, NULL);
}

void glue_close_opener(scheduler *s)
{
    opener *o = s->opener;
    s->opener = NULL;
    if (!o)
        return;
    join(o);
    if (o->made)
        lapse_close(o->made, 0);
    free_opener(o);
}

/* Take over what was opened: the thread has ended, or is about to. */
static void adopt(scheduler *s)
{
    opener *o = s->opener;
    join(o);
    s->lapse = o->made;
    s->opener = NULL;
    free_opener(o);
    s->durable = lapse_abilities(s->lapse) & LAPSE_CAN_DURABLE;
    s->submits = s->hosted && s->durable;
    glue_relay_watches(s);
}

/* -- For Lua -- */

/* scheduler, [seconds] -> true: it is open. false: it has not been tried to the end. false,
 * message, code: it is tried again. nil, message, code: it never will be. With a number of
 * seconds it waits that long for the first attempt. */
static int is_open(lua_State *L)
{
    scheduler *s = glue_self(L);
    lapse_ns patience = lua_isnoneornil(L, 2) ? 0 : glue_check_seconds(L, 2, "the patience");
    opener *o = s->opener;
    if (!o) {
        lua_pushboolean(L, s->lapse != NULL);
        return 1;
    }
    if (patience > 0)
        bell_wait(o->news, patience);
    pthread_mutex_lock(&o->lock);
    bool made = o->made, hopeless = o->ended && !made;
    int code = o->code;
    char words[600] = "";
    if (code < 0 && o->words)
        strncpy(words, o->words, sizeof words - 1);
    pthread_mutex_unlock(&o->lock);
    if (made)
        adopt(s);
    if (hopeless)
        return glue_condition(L, code, *words ? words : lapse_strerror(code));
    lua_pushboolean(L, made);
    if (made || !code)
        return 1;
    lua_pushstring(L, *words ? words : lapse_strerror(code));
    lua_pushstring(L, lapse_error_name(code));
    return 3;
}

const luaL_Reg glue_opener_methods[] = {{"is_open", is_open}, {NULL, NULL}};
