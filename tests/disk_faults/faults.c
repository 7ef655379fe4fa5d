/* Loaded before the C library: one call in the life of the process fails, or every sync is slow.
 *
 * DUEWHEEL_TEST_FAULT is CALL:FAULT:N. The N-th CALL (fdatasync, fsync, pwrite, rename; over all threads, from 1) fails with
 * EIO or ENOSPC, or, for pwrite, writes half of what it was given (short). All others are passed on. When it happens the path of
 * the file is written to the one that DUEWHEEL_TEST_INJECTED names. While the file that DUEWHEEL_TEST_SLOW names exists, each fdatasync
 * takes two seconds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long calls;

/* The fault that strikes this call on a file: an errno, -1 for a short write, 0 for none. */
static int fault(const char *call, const char *path) {
    const char *plan = getenv("DUEWHEEL_TEST_FAULT");
    size_t length = strlen(call);
    if (plan == NULL || strncmp(plan, call, length) != 0 || plan[length] != ':') return 0;
    const char *kind = plan + length + 1;
    const char *number = strchr(kind, ':');
    if (number == NULL) abort();
    if (atomic_fetch_add(&calls, 1) + 1 != strtol(number + 1, NULL, 10)) return 0;
    int log = open(getenv("DUEWHEEL_TEST_INJECTED"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log < 0 || write(log, path, strlen(path)) != (ssize_t)strlen(path) || close(log) != 0) abort();
    if (strncmp(kind, "EIO", 3) == 0) return EIO;
    if (strncmp(kind, "ENOSPC", 6) == 0) return ENOSPC;
    if (strncmp(kind, "short", 5) == 0) return -1;
    abort();
}

static int fault_of(const char *call, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return fault(call, path);
}

int fdatasync(int fd) {
    static int (*passed_on)(int) = NULL;
    if (passed_on == NULL) passed_on = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *slow = getenv("DUEWHEEL_TEST_SLOW");
    if (slow != NULL && access(slow, F_OK) == 0) sleep(2);
    int error = fault_of("fdatasync", fd);
    if (error != 0) return errno = error, -1;
    return passed_on(fd);
}

int fsync(int fd) {
    static int (*passed_on)(int) = NULL;
    if (passed_on == NULL) passed_on = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int error = fault_of("fsync", fd);
    if (error != 0) return errno = error, -1;
    return passed_on(fd);
}

int rename(const char *from, const char *to) {
    static int (*passed_on)(const char *, const char *) = NULL;
    if (passed_on == NULL) passed_on = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    int error = fault("rename", from);
    if (error != 0) return errno = error, -1;
    return passed_on(from, to);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    static ssize_t (*passed_on)(int, const void *, size_t, off64_t) = NULL;
    if (passed_on == NULL) passed_on = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    int error = fault_of("pwrite", fd);
    if (error > 0) return errno = error, -1;
    return passed_on(fd, bytes, error < 0 && count > 1 ? count / 2 : count, offset);
}
