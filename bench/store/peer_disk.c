/* peer_disk.c - the least that keeping costs on this disk: the orders of a call appended to a
 * file, then fdatasync. They cannot be found again. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../core/bench.h"
#include "store.h"

static char path[600];
static int file;

static void start(const char *folder, store_use use)
{
    (void)use;
    snprintf(path, sizeof path, "%s/log", folder);
}

static void stop(void) {}

static void join(void)
{
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0)
        bench_die("%s: %s", path, strerror(errno));
}

static void leave(void)
{
    close(file);
}

static void *connect_(void)
{
    return &file;
}

static void disconnect(void *link)
{
    (void)link;
}

static void put(void *link, store_order *orders, size_t count)
{
    (void)link;
    char records[STORE_BATCH * (STORE_PAYLOAD_MAX + sizeof orders->id + sizeof orders->delay)];
    size_t len = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(records + len, orders[i].id, sizeof orders[i].id);
        len += sizeof orders[i].id;
        memcpy(records + len, &orders[i].delay, sizeof orders[i].delay);
        len += sizeof orders[i].delay;
        memcpy(records + len, orders[i].payload, orders[i].payload_len);
        len += orders[i].payload_len;
    }
    if (write(file, records, len) != (ssize_t)len || fdatasync(file) != 0)
        bench_die("%s: %s", path, strerror(errno));
}

const store_peer store_peers[] = {
    {.name = "disk",
     .kind = "disk",
     .groups = "one,many",
     .start = start,
     .stop = stop,
     .join = join,
     .leave = leave,
     .connect = connect_,
     .disconnect = disconnect,
     .put = put},
    {0},
};

const char *store_version(void)
{
    return "append and fdatasync";
}
