/* Loaded before the C library: the wall clock is set forward by as many milliseconds as the file holds that
 * DUEWHEEL_TEST_SHIFT names (8 bytes, little endian, signed). No other clock is touched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*passed_on)(clockid_t, struct timespec *) = NULL;
    static volatile int64_t *shift = NULL;
    if (passed_on == NULL) passed_on = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = passed_on(clock, now);
    if (result != 0 || clock != CLOCK_REALTIME) return result;
    if (shift == NULL) {
        int file = open(getenv("DUEWHEEL_TEST_SHIFT"), O_RDONLY | O_CLOEXEC);
        void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED) abort();
        close(file);
        shift = mapped;
    }
    int64_t ns = now->tv_nsec + (*shift % 1000) * 1000000;
    now->tv_sec += *shift / 1000 + (ns < 0 ? -1 : ns / 1000000000);
    now->tv_nsec = ns < 0 ? ns + 1000000000 : ns % 1000000000;
    return 0;
}
