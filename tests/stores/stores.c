/* stores.c - see stores.h. */
#define _GNU_SOURCE
#include "stores/stores.h"
#include "stores/simple_store.h"
#include "stores/table.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- The table --------------------------------------------------------------------------- */

struct row {
    const char *name;
    const char *url;  /* with %s for a fresh path, or without; of one on a server: more options */
    lapse_ns tick;    /* what it may round a due time up by */
    long most;        /* orders that it is asked to hold in a test; 0: as many as the test likes */
    bool one_process; /* durable, but its orders end with this process */
    const char *server; /* the script in tests/servers that starts it; NULL: needs none */
    const char *apart;  /* the option that keeps places on one server apart; NULL: `url` does */
};

static const struct row table[] = {
    {"wheel", "memory:?engine=wheel&tick=1ms", LAPSE_MS(1), 0, true, NULL, NULL},
    {"heap", "memory:?engine=heap", 0, 0, true, NULL, NULL},
    /* simple_store.c: the twin of all durable ones */
    {"simple", "test:%s", 0, 1000, true, NULL, NULL},
    {"sqlite", "sqlite:///%s", LAPSE_MS(1), 0, false, NULL, NULL},
    {"postgresql", NULL, LAPSE_MS(1), 0, false, "postgresql", "schema"},
    {"redis", NULL, LAPSE_MS(1), 0, false, "redis", "prefix"},
    {"rabbitmq", "&new=0s", LAPSE_MS(1), 300, false, "rabbitmq", "prefix"},
    {"rabbitmq_ticket", "&poll=1s&ticket=sqlite%%3A///%s", LAPSE_MS(1), 0, false, "rabbitmq",
     "prefix"},
};

enum { ROWS = sizeof table / sizeof *table };

static int built[ROWS]; /* numbers of rows */
static unsigned abilities_of[ROWS];
static int built_count;
static char folder[256];
static char bases[ROWS][256]; /* what the URLs of those on a server begin with */
static int paths;             /* made so far in this process */
static pid_t runner;          /* the servers end with it, however it ends */
static unsigned long started; /* when: what another process with its number left is not met */
static const char *standing;  /* LAPSE_SERVER: the folder of one that is there for others too */

int store_count(void)
{
    return built_count;
}

static const struct row *row_of(int store)
{
    ck_assert_int_lt(store, built_count);
    return &table[built[store]];
}

const char *store_name(int store)
{
    return row_of(store)->name;
}

const char *store_server(int store)
{
    return row_of(store)->server;
}

/* For what is used outside of a running test too, where check cannot assert. */
static void must(bool holds, const char *what)
{
    if (holds)
        return;
    perror(what);
    exit(EXIT_FAILURE);
}

int store_most(int store, long wanted)
{
    long most = row_of(store)->most;
    return (int)(most != 0 && most < wanted ? most : wanted);
}

void new_path(char *out, size_t size, const char *name)
{
    int length = snprintf(out, size, "%s/%ld-%d-%s", folder, (long)getpid(), paths++, name);
    must(length < (int)size, folder);
}

static void row_url(const struct row *row, char *out, size_t size)
{
    int length = 0;
    if (row->server != NULL) {
        const char *base = bases[row - table];
        length =
            snprintf(out, size, "%s%c%s=t%lx_%ld_%d", base, strchr(base, '?') != NULL ? '&' : '?',
                     row->apart, started, (long)getpid(), paths++);
        must(length < (int)size, base);
    }
    if (row->url == NULL)
        return;
    char path[400];
    new_path(path, sizeof path, "orders.db");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int more = snprintf(out + length, size - (size_t)length, row->url, path);
#pragma GCC diagnostic pop
    must(more < (int)size - length, path);
    simple_store_clear();
}

/* LAPSE_STORES names those to run on, "redis,sqlite"; without it, those that need no server. */
static bool is_asked_for(const struct row *row)
{
    const char *names = getenv("LAPSE_STORES");
    if (names == NULL)
        return row->server == NULL;
    size_t length = strlen(row->name);
    for (const char *at = names; (at = strstr(at, row->name)) != NULL; at += length)
        if ((at == names || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

void server_do(const char *server, const char *verb, char *line, size_t size)
{
    char command[1024], own[300];
    snprintf(own, sizeof own, "%s/%s", folder, server);
    snprintf(command, sizeof command, "'%s/%s' %s '%s' %ld", LAPSE_SERVERS, server, verb,
             standing != NULL ? standing : own, (long)runner);
    FILE *out = popen(command, "r");
    must(out != NULL, command);
    char said[256] = "";
    if (fgets(said, sizeof said, out) != NULL)
        said[strcspn(said, "\n")] = '\0';
    if (pclose(out) != 0) {
        fprintf(stderr, "failed: %s\n", command);
        exit(EXIT_FAILURE);
    }
    if (line != NULL)
        snprintf(line, size, "%s", said);
}

static void stop_servers(void)
{
    for (int i = 0; standing == NULL && i < ROWS; i++)
        if (*bases[i] != '\0')
            server_do(table[i].server, "stop", NULL, 0);
}

/* A store that this build leaves out is named, not passed over. */
static bool is_built(int i)
{
    char url[512];
    lapse *s;
    if (table[i].server != NULL)
        server_do(table[i].server, standing != NULL ? "url" : "start", bases[i], sizeof bases[i]);
    row_url(&table[i], url, sizeof url);
    int result = lapse_open(url, NULL, &s);
    if (result == LAPSE_ESTORE) {
        printf("skipped: %s: %s\n", table[i].name, lapse_error_detail());
        return false;
    }
    if (result != 0) {
        fprintf(stderr, "%s: %s\n", url, lapse_error_detail());
        exit(EXIT_FAILURE);
    }
    abilities_of[i] = lapse_abilities(s);
    lapse_close(s, LIMIT);
    return true;
}

static void open_table(void)
{
    for (int i = 0; i < ROWS; i++)
        if (is_asked_for(&table[i]) && is_built(i))
            built[built_count++] = i;
    if (built_count == 0) {
        const char *names = getenv("LAPSE_STORES");
        fprintf(stderr, "LAPSE_STORES=%s names no store of this build\n", names ? names : "");
        exit(EXIT_FAILURE);
    }
    fflush(stdout);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void make_folder(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/lapse-stores-XXXXXX",
             base != NULL && *base == '/' ? base : "/tmp");
    must(mkdtemp(folder) != NULL, folder);
}

int stores_main(const char *name, void (*fill)(Suite *suite))
{
    make_folder();
    runner = getpid();
    started = (unsigned long)(boot_now() / LAPSE_MS(1));
    standing = getenv("LAPSE_SERVER");
    lp_test_store = &simple_store;
    open_table();
    Suite *suite = suite_create(name);
    fill(suite);
    int status = run_suite(suite);
    stop_servers();
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return status;
}

/* -- Places ------------------------------------------------------------------------------ */

void add_option(place *p, const char *option)
{
    size_t length = strlen(p->url);
    snprintf(p->url + length, sizeof p->url - length, "%c%s",
             strchr(p->url, '?') != NULL ? '&' : '?', option);
}

place new_place(int store, const char *options)
{
    const struct row *row = row_of(store);
    place p = {.store = store, .tick = row->tick};
    row_url(row, p.url, sizeof p.url);
    if (options != NULL)
        add_option(&p, options);
    return p;
}

static void open_at(rig *r, const place *p, const lapse_options *options)
{
    lapse_options given = options != NULL ? *options : (lapse_options){0};
    given.clock = r->clock;
    r->tick = p->tick;
    int result = lapse_open(p->url, &given, &r->s);
    ck_assert_msg(result == 0, "lapse_open(%s): %s", p->url, lapse_error_detail());
}

rig open_place(const place *p, const lapse_options *options)
{
    rig r = {.s = NULL};
    ck_assert_int_eq(lapse_clock_manual(START, &r.clock), 0);
    open_at(&r, p, options);
    return r;
}

rig join_place(const place *p, const rig *r, const lapse_options *options)
{
    rig other = {.clock = r->clock};
    open_at(&other, p, options);
    return other;
}

void leave_place(rig *r)
{
    int result = lapse_close(r->s, LIMIT);
    ck_assert_msg(result == 0, "lapse_close: %s", lapse_error_detail());
    r->s = NULL;
    check_calm();
}

void reopen_place(const place *p, rig *r, const lapse_options *options)
{
    leave_place(r);
    open_at(r, p, options);
}

rig open_real(const place *p, const lapse_options *options)
{
    rig r = {.s = NULL};
    open_at(&r, p, options);
    return r;
}

rig fresh(int store, const lapse_options *options)
{
    place p = new_place(store, NULL);
    return open_place(&p, options);
}

rig fresh_real(int store, const lapse_options *options)
{
    place p = new_place(store, NULL);
    return open_real(&p, options);
}

bool shared_by_processes(int store, const char *test)
{
    bool shared = !row_of(store)->one_process;
    if (!shared)
        printf("skipped: %s: %s: its orders are one process's memory\n", test, store_name(store));
    return shared;
}

unsigned store_abilities(int store)
{
    return abilities_of[row_of(store) - table];
}

static bool has(unsigned abilities, const char *test, unsigned wanted)
{
    static const char *const names[] = {
        "callbacks of an order's own", "durable", "shared", "cancel", "list", "transact", "limit"};
    unsigned missing = wanted & ~abilities;
    for (int bit = 0; bit < 7; bit++)
        if (missing & 1u << bit)
            printf("skipped: %s: this store has no: %s\n", test, names[bit]);
    fflush(stdout);
    return missing == 0;
}

bool able(const rig *r, const char *test, unsigned abilities)
{
    return has(lapse_abilities(r->s), test, abilities);
}

bool store_able(int store, const char *test, unsigned abilities)
{
    return has(store_abilities(store), test, abilities);
}

/* -- Orders ------------------------------------------------------------------------------ */

void finish_one(lapse *s, const char *queue, const char *id)
{
    settle(s, poll_one(s, queue, id)->fence, LAPSE_DONE);
}

lapse_info look(lapse *s, const char *id)
{
    lapse_info info = {.id = NULL};
    int result = lapse_get(s, id, &info);
    ck_assert_msg(result == 0, "lapse_get(%s): %s", id, lapse_error_detail());
    return info;
}

/* -- Other processes ----------------------------------------------------------------------- */

void play_part(int argc, char **argv, const part *parts, size_t count)
{
    for (size_t i = 0; argc > 1 && i < count; i++)
        if (strcmp(argv[1], parts[i].name) == 0)
            exit(parts[i].play(argc - 1, argv + 1));
}

pid_t start_part(const char *const *argv, int *out)
{
    const char *words[32] = {"/proc/self/exe"};
    int count = 1, ends[2] = {-1, -1};
    while (argv[count - 1] != NULL && count < 31) {
        words[count] = argv[count - 1];
        count++;
    }
    if (out != NULL)
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    fflush(stdout);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (out != NULL)
            dup2(ends[1], STDOUT_FILENO);
        execv(words[0], (char *const *)words);
        _exit(127);
    }
    if (out != NULL) {
        close(ends[1]);
        *out = ends[0];
    }
    return pid;
}

int end_of(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        ck_assert_int_eq(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
