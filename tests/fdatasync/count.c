/* Loaded before the C library: passes each fdatasync on and writes one byte to the file that DUEWHEEL_TEST_SYNCS names.
 * With DUEWHEEL_TEST_LOSE set it counts nothing and syncs nothing, as a broker would that forgot to. A sync_file_range,
 * which syncs too little, is passed on and leaves a byte in the file that DUEWHEEL_TEST_RANGES names, if one is named. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int fd) {
    static int (*passed_on)(int) = NULL;
    static int log = -1;
    if (getenv("DUEWHEEL_TEST_LOSE") != NULL) return 0;
    if (passed_on == NULL) passed_on = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (log < 0) log = open(getenv("DUEWHEEL_TEST_SYNCS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int result = passed_on(fd);
    if (write(log, "s", 1) != 1) abort();
    return result;
}

int sync_file_range(int fd, off64_t offset, off64_t bytes, unsigned int flags) {
    static int (*passed_on)(int, off64_t, off64_t, unsigned int) = NULL;
    if (passed_on == NULL) passed_on = (int (*)(int, off64_t, off64_t, unsigned int))dlsym(RTLD_NEXT, "sync_file_range");
    const char *name = getenv("DUEWHEEL_TEST_RANGES");
    int log = name == NULL ? -1 : open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log >= 0 && (write(log, "r", 1) != 1 || close(log) != 0)) abort();
    return passed_on(fd, offset, bytes, flags);
}
