/* Loaded before libc into a server under test: its wall clock is the machine's plus an offset in a file.
 *
 * No allocation, no lock, no call into libc's clock: allocators read the clock while they set themselves up. The file is
 * mapped, so a step counts at once and costs nothing to look for. Monotonic time stays real: servers measure their pauses
 * with it, and no step of a real clock moves it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_s;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("STEPPED_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset_s = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (failed) return -1;
    if (offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *also) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (also) *also = exact.tv_sec;
    return exact.tv_sec;
}
