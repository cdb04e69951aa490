/* sqlite_clock.c - the store's clock: milliseconds that survive a reboot and never go back.
 *
 * While the machine is up it is the machine's own clock of uptime plus an anchor that all
 * processes share, so that steps of the wall clock move nothing. After a reboot only the wall
 * clock is left: it tells how much time has passed since the latest reading that was written,
 * beside which its own stands; if it went back, none has. A manual clock is a boot of its own, and starts another one when it is opened
 * behind that reading. The anchor is whole milliseconds, so that whole milliseconds of the
 * scheduler's clock stay what they are. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "stores/sqlite.h"

static const int64_t MS = 1000000, FENCES_AHEAD = 10 * INT64_C(1000000);

static int64_t floor_ms(lapse_ns t)
{
    return t / MS - (t % MS < 0);
}

static int64_t ceil_ms(lapse_ns t)
{
    return t / MS + (t % MS > 0);
}

void lp_sqlite_read_boot(session *s)
{
    memset(s->boot, 0, sizeof s->boot);
    strncpy(s->boot, "manual", LP_BOOT_LEN);
    if (s->config.manual)
        return;
    strncpy(s->boot, "unknown", LP_BOOT_LEN);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    char text[LP_BOOT_LEN];
    if (read(fd, text, sizeof text) == (ssize_t)sizeof text)
        memcpy(s->boot, text, sizeof text);
    close(fd);
}

/* Whether the clock is another one than that of the anchor, where the boot does not tell. */
static bool is_behind(const session *s, lapse_ns now)
{
    const meta *m = &s->meta;
    bool tells = strlen(s->boot) == LP_BOOT_LEN;
    return !tells && floor_ms(s->config.now) + m->ahead < m->clock &&
           floor_ms(now) + m->ahead < m->clock;
}

bool lp_sqlite_anchor(session *s, lapse_ns now, lapse_ns wall)
{
    meta *m = &s->meta;
    s->now_ns = now;
    s->wall = floor_ms(wall);
    bool same = strcmp(m->boot, s->boot) == 0;
    if (!same || is_behind(s, now)) {
        /* Only what the wall clock says has passed: where it stands may differ by its steps. */
        int64_t passed = s->wall > m->wall ? s->wall - m->wall : 0;
        int64_t start = m->clock + passed;
        memcpy(m->boot, s->boot, sizeof m->boot);
        m->ahead = start - floor_ms(now);
        if (m->fence < m->fence_top)
            m->fence = m->fence_top; /* Later ones may have been lost with the power. */
        s->changed = s->writes;
        s->known = s->writes;
    }
    s->now = floor_ms(now) + m->ahead;
    return true;
}

int64_t lp_sqlite_time(const session *s, lapse_ns scheduler)
{
    return lp_sum_ns(ceil_ms(scheduler), s->meta.ahead);
}

lapse_ns lp_sqlite_scheduler_time(const session *s, int64_t at)
{
    lapse_ns t;
    if (__builtin_mul_overflow(lp_sum_ns(at, -s->meta.ahead), MS, &t))
        return at < 0 ? INT64_MIN : LAPSE_FOREVER;
    return t;
}

int64_t lp_sqlite_next_fence(session *s)
{
    meta *m = &s->meta;
    int64_t clock = s->now * 1000; /* microseconds */
    m->fence = clock > m->fence ? clock : m->fence + 1;
    if (m->fence > m->fence_top) {
        s->need_sync = !s->durable;
        m->fence_top = m->fence + FENCES_AHEAD;
    }
    return m->fence;
}
