/* aside.c - looks at a durable store on a thread of their own, for a host that must not wait.
 *
 * What cannot be submitted (ask.c): counts, lists, purges. A look is begun with a ticket, made by
 * the thread, and its results become Lua values when they are collected. The thread is made
 * with the first look, makes one after the other, and never enters Lua. */
#include "look.h"
#include "thread.h"

#include <stdlib.h>
#include <string.h>

struct aside {
    scheduler *s;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work;
    bool quit;
    look *asked, **asked_end;
    look *made, **made_end;
};

/* -- Looks -- */

look *glue_new_look(int64_t (*make_it)(look *, lapse *), int (*push)(lua_State *, const look *),
                    const char *name)
{
    look *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->make = make_it;
    l->push = push;
    if (name && !(l->name = strdup(name))) {
        free(l);
        return NULL;
    }
    return l;
}

void glue_free_look(look *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->count && l->infos; i++)
        lapse_info_free(&l->infos[i]);
    for (size_t i = 0; i < l->count && l->names; i++)
        free(l->names[i]);
    free(l->infos);
    free(l->names);
    lapse_free(l->text);
    free(l->name);
    free(l->words);
    free(l);
}

static void append(look ***end, look *l)
{
    l->next = NULL;
    **end = l;
    *end = &l->next;
}

/* The first one; NULL: none. */
static look *first(look **list, look ***end)
{
    look *l = *list;
    if (l && !(*list = l->next))
        *end = list;
    return l;
}

/* -- The thread -- */

static void make(const aside *a, look *l)
{
    l->result = l->make(l, a->s->lapse);
    if (l->result < 0)
        l->words = strdup(lapse_error_detail());
}

static void *serve(void *arg)
{
    aside *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->quit) {
        look *l = first(&a->asked, &a->asked_end);
        if (!l) {
            pthread_cond_wait(&a->work, &a->lock);
            continue;
        }
        pthread_mutex_unlock(&a->lock);
        make(a, l);
        pthread_mutex_lock(&a->lock);
        append(&a->made_end, l);
        glue_ring(a->s);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static aside *open_aside(scheduler *s)
{
    aside *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->s = s;
    a->asked_end = &a->asked;
    a->made_end = &a->made;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    if (thread_start(&a->thread, serve, a) == 0)
        return a;
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    free(a);
    return NULL;
}

static void free_all(look *list)
{
    while (list) {
        look *next = list->next;
        glue_free_look(list);
        list = next;
    }
}

void glue_close_aside(scheduler *s)
{
    aside *a = s->aside;
    s->aside = NULL;
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    free_all(a->asked);
    free_all(a->made);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* -- For the glue -- */

int glue_look_aside(lua_State *L, scheduler *s, look *l)
{
    if (l && !s->aside)
        s->aside = open_aside(s);
    aside *a = s->aside;
    if (!l || !a) {
        glue_free_look(l);
        return glue_no_memory(L);
    }
    l->ticket = glue_new_ticket(s);
    glue_push_int64(L, l->ticket);
    pthread_mutex_lock(&a->lock);
    append(&a->asked_end, l);
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->lock);
    return 1;
}

look *glue_next_look(scheduler *s)
{
    aside *a = s->aside;
    if (!a)
        return NULL;
    pthread_mutex_lock(&a->lock);
    look *l = first(&a->made, &a->made_end);
    pthread_mutex_unlock(&a->lock);
    return l;
}
