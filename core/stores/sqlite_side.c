/* sqlite_side.c - the file beside the database through which processes agree.
 *
 * It holds nothing that is needed: without it, or with a fresh one, the lock is SQLite's own,
 * which is correct but not fair, and who sleeps finds out by polling. It is mapped into every
 * process:
 *
 *     gate     a robust mutex in front of SQLite's lock, entered in the order of coming: who
 *              waits has a ticket, and only the first in line waits at the mutex itself
 *     seats    one for each store that is open, kept by a lock on one byte of the file, which
 *              the kernel drops with its holder. Its owner writes until when it sleeps;
 *              others write the earliest that they have scheduled meanwhile
 *
 * Who schedules something earlier than a sleeper's next writes one byte to the file, and
 * inotify tells all sleepers. Either the sleeper sees what was scheduled, or the other sees
 * that it sleeps: both write first and read then. */
#define _GNU_SOURCE /* F_OFD_SETLK */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wake.h"
#include "stores/sqlite.h"

enum {
    SEATS = 48,
    SIZE = 8192,
    TOUCHED = 16,         /* the byte that is written to wake */
    MAKING = 0,           /* the byte that is locked to make the file */
    LOOK_MS = 20,         /* how often to look whether the holder of the gate died */
    FIRST_SEAT_BYTE = 64, /* and those that are locked to hold a seat */
};

#define MAGIC UINT64_C(0x3265646973706c00) /* and the version of what follows */

typedef struct seat {
    _Atomic int64_t sleeps_until; /* INT64_MIN: awake */
    _Atomic int64_t earliest;     /* that others scheduled since its last look */
    _Atomic uint64_t ticket;      /* while it waits for the gate; 0: it does not */
    uint64_t unused[5];
} seat;

typedef struct shared {
    uint64_t magic;
    uint64_t size;
    char touched[8];
    char boot[LP_BOOT_LEN + 4];
    _Atomic uint32_t turns;   /* how often the gate was entered; a futex */
    _Atomic uint32_t left;    /* and left; another */
    _Atomic uint32_t inside;  /* 1: somebody is, or died there */
    _Atomic uint64_t tickets; /* given so far */
    pthread_mutex_t gate;
    seat seats[SEATS];
} shared;

_Static_assert(sizeof(shared) <= SIZE, "the side file has room for all");
_Static_assert(offsetof(shared, touched) == TOUCHED, "the byte that wakes is unused otherwise");

struct side {
    shared *map; /* NULL: there is no file that could be used */
    int fd, notify;
    int seat;          /* -1: it has none */
    lapse_ns patience; /* with who is first in line and does not enter the open gate */
    bool sleeps;
    char boot[LP_BOOT_LEN + 4];
    char path[]; /* of the side file */
};

/* -- Opening -- */

static bool lock_byte(int fd, off_t at, short type, bool wait)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int rc;
    do
        rc = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &l);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

/* With the owner and mode of the database, as SQLite makes its own files. */
static int open_file(const char *path, const char *database)
{
    struct stat st;
    if (stat(database, &st) != 0)
        return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, st.st_mode & 0777);
    if (fd < 0)
        return -1;
    if (geteuid() == 0 && fchown(fd, st.st_uid, st.st_gid) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool init_gate(pthread_mutex_t *gate)
{
    pthread_mutexattr_t kind;
    if (pthread_mutexattr_init(&kind) != 0)
        return false;
    bool ok = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) == 0 &&
              pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 &&
              pthread_mutex_init(gate, &kind) == 0;
    pthread_mutexattr_destroy(&kind);
    return ok;
}

/* Under the lock of MAKING. A gate of another boot may look held by a thread that is no more. */
static bool make_shared(const side *b)
{
    shared *m = b->map;
    bool right = m->magic == MAGIC && m->size == sizeof *m;
    if (right && memcmp(m->boot, b->boot, sizeof m->boot) == 0)
        return true;
    if (m->magic != 0 && !right)
        return false; /* Another version's, or something else. */
    memset(m, 0, sizeof *m);
    m->size = sizeof *m;
    memcpy(m->boot, b->boot, sizeof m->boot);
    for (int i = 0; i < SEATS; i++) {
        atomic_init(&m->seats[i].sleeps_until, INT64_MIN);
        atomic_init(&m->seats[i].earliest, INT64_MAX);
    }
    if (!init_gate(&m->gate))
        return false;
    m->magic = MAGIC;
    return true;
}

static bool map_file(side *b)
{
    struct stat st;
    if (fstat(b->fd, &st) != 0 || (st.st_size < SIZE && ftruncate(b->fd, SIZE) != 0))
        return false;
    void *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (map == MAP_FAILED)
        return false;
    b->map = map;
    return make_shared(b);
}

static void take_seat(side *b)
{
    for (int i = 0; i < SEATS; i++) {
        if (!lock_byte(b->fd, FIRST_SEAT_BYTE + i, F_WRLCK, false))
            continue;
        seat *mine = &b->map->seats[i];
        atomic_store(&mine->sleeps_until, INT64_MIN);
        atomic_store(&mine->earliest, INT64_MAX);
        atomic_store(&mine->ticket, 0);
        b->seat = i;
        return;
    }
}

static void shut(side *b)
{
    if (b->map)
        munmap(b->map, SIZE);
    if (b->fd >= 0)
        close(b->fd);
    b->map = NULL;
    b->fd = -1;
    b->seat = -1;
}

/* Whatever fails here, the store works without. */
static void open_side(side *b, const char *database)
{
    b->fd = open_file(b->path, database);
    if (b->fd < 0)
        return;
    bool ok = lock_byte(b->fd, MAKING, F_WRLCK, true) && map_file(b);
    lock_byte(b->fd, MAKING, F_UNLCK, false);
    if (!ok) {
        shut(b);
        return;
    }
    if (b->sleeps)
        take_seat(b);
    if (b->notify >= 0)
        inotify_add_watch(b->notify, b->path, IN_MODIFY);
}

side *lp_side_open(const char *database, const char *boot, bool sleeps)
{
    size_t size = strlen(database) + sizeof "-lapse";
    side *b = calloc(1, sizeof *b + size);
    if (!b)
        return NULL;
    snprintf(b->path, size, "%s-lapse", database);
    strncpy(b->boot, boot, sizeof b->boot - 1);
    b->fd = b->seat = -1;
    b->sleeps = sleeps;
    b->patience = LAPSE_MS(20);
    b->notify = sleeps ? inotify_init1(IN_NONBLOCK | IN_CLOEXEC) : -1;
    open_side(b, database);
    return b;
}

void lp_side_close(side *b)
{
    if (!b)
        return;
    if (b->seat >= 0) {
        atomic_store(&b->map->seats[b->seat].sleeps_until, INT64_MIN);
        lock_byte(b->fd, FIRST_SEAT_BYTE + b->seat, F_UNLCK, false);
    }
    shut(b);
    if (b->notify >= 0)
        close(b->notify);
    free(b);
}

/* The lock of the seat is the parent's as well: it is not dropped. */
void lp_side_abandon(side *b)
{
    shut(b);
    if (b->notify >= 0)
        close(b->notify);
    b->notify = -1;
}

/* -- The gate -- */

static void futex_wait(_Atomic uint32_t *at, uint32_t value, lapse_ns limit)
{
    struct timespec t = {.tv_sec = limit / 1000000000, .tv_nsec = limit % 1000000000};
    syscall(SYS_futex, at, FUTEX_WAIT, value, &t, NULL, 0);
}

/* The seat that has waited longest, or NULL when that is `mine`. */
static seat *first_in_line(shared *m, const seat *mine)
{
    seat *first = NULL;
    uint64_t least = atomic_load(&mine->ticket);
    for (int i = 0; i < SEATS; i++) {
        uint64_t ticket = atomic_load(&m->seats[i].ticket);
        if (ticket && ticket < least) {
            least = ticket;
            first = &m->seats[i];
        }
    }
    return first;
}

/* Until all who came before have entered. One that does not although the gate is open is not
 * there any more, or not awake: its ticket is void. */
static void stand_in_line(const side *b, const seat *mine, lapse_ns until)
{
    shared *m = b->map;
    seat *first;
    while ((first = first_in_line(m, mine)) && lp_clock_monotonic() < until) {
        uint32_t turn = atomic_load(&m->turns);
        uint64_t ticket = atomic_load(&first->ticket);
        bool shut = atomic_load(&m->inside) != 0;
        if (first_in_line(m, mine) != first)
            continue;
        futex_wait(&m->turns, turn, b->patience);
        bool stands = atomic_load(&m->turns) == turn && !atomic_load(&m->inside) && !shut;
        if (stands)
            atomic_compare_exchange_strong(&first->ticket, &ticket, 0);
    }
}

static bool is_locked(pthread_mutex_t *gate, int rc)
{
    if (rc == EOWNERDEAD) /* It guards nothing that its holder could have left half done. */
        pthread_mutex_consistent(gate);
    return rc == 0 || rc == EOWNERDEAD;
}

/* Wake whoever waits for this number to change, if somebody may. */
static void change(shared *m, _Atomic uint32_t *number)
{
    atomic_fetch_add(number, 1);
    for (int i = 0; i < SEATS; i++)
        if (atomic_load(&m->seats[i].ticket)) {
            syscall(SYS_futex, number, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
            return;
        }
}

/* Nobody tells when the holder dies: it is looked for now and then. */
static bool lock_gate(shared *m, lapse_ns until)
{
    for (;;) {
        uint32_t left = atomic_load(&m->left);
        if (is_locked(&m->gate, pthread_mutex_trylock(&m->gate)))
            return true;
        lapse_ns rest = until - lp_clock_monotonic();
        if (rest <= 0)
            return false;
        futex_wait(&m->left, left, rest < LAPSE_MS(LOOK_MS) ? rest : LAPSE_MS(LOOK_MS));
    }
}

bool lp_side_enter(side *b, lapse_ns limit)
{
    shared *m = b->map;
    if (!m)
        return false;
    lapse_ns until = lp_add_ns(lp_clock_monotonic(), limit);
    seat *mine = b->seat >= 0 ? &m->seats[b->seat] : NULL;
    if (mine) {
        atomic_store(&mine->ticket, atomic_fetch_add(&m->tickets, 1) + 1);
        stand_in_line(b, mine, until);
    }
    bool inside = lock_gate(m, until);
    if (mine)
        atomic_store(&mine->ticket, 0);
    if (inside) {
        atomic_store(&m->inside, 1);
        change(m, &m->turns);
    }
    return inside;
}

int lp_side_waiting(const side *b)
{
    int n = 0;
    for (int i = 0; b->map && i < SEATS; i++)
        n += atomic_load(&b->map->seats[i].ticket) != 0;
    return n;
}

void lp_side_set_patience(side *b, lapse_ns patience)
{
    b->patience = patience;
}

void lp_side_leave(side *b)
{
    atomic_store(&b->map->inside, 0);
    pthread_mutex_unlock(&b->map->gate);
    change(b->map, &b->map->left);
}

/* -- Sleeping and waking -- */

int lp_side_fd(const side *b)
{
    return b->notify;
}

void lp_side_drain(side *b)
{
    char events[1024];
    while (b->notify >= 0 && read(b->notify, events, sizeof events) > 0)
        ;
}

/* If the file was deleted, others may have made another; one that was cut off is mended. */
static void follow(side *b, const char *database)
{
    struct stat st;
    if (b->fd < 0 || fstat(b->fd, &st) != 0 || (st.st_nlink > 0 && st.st_size >= SIZE))
        return;
    shut(b);
    open_side(b, database);
}

void lp_side_awake(side *b, const char *database)
{
    follow(b, database);
    if (b->seat < 0)
        return;
    seat *mine = &b->map->seats[b->seat];
    atomic_store(&mine->sleeps_until, INT64_MIN);
    atomic_store(&mine->earliest, INT64_MAX);
}

static void lower(_Atomic int64_t *to, int64_t at)
{
    int64_t is = atomic_load(to);
    while (at < is && !atomic_compare_exchange_weak(to, &is, at))
        ;
}

void lp_side_tell(side *b, int64_t at)
{
    bool wakes = false;
    for (int i = 0; b->map && i < SEATS; i++) {
        if (i == b->seat)
            continue;
        lower(&b->map->seats[i].earliest, at);
        wakes = wakes || at < atomic_load(&b->map->seats[i].sleeps_until);
    }
    if (wakes && pwrite(b->fd, "", 1, TOUCHED) != 1)
        return; /* They find out by polling. */
}

bool lp_side_sleep(side *b, int64_t next)
{
    if (b->seat < 0)
        return false;
    seat *mine = &b->map->seats[b->seat];
    atomic_store(&mine->sleeps_until, next);
    return atomic_load(&mine->earliest) < next;
}
