/* Cuts the power of the file system that is mounted at its argument when a byte comes in, and does nothing when none
 * comes: nothing is written to the device any more, not even the log. ext4 and xfs (and others) know this call by the
 * same number. It waits for the byte because to start a program takes longer than some of the moments to be met. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>

#define FS_IOC_SHUTDOWN _IOR('X', 125, uint32_t)
#define WITHOUT_A_FLUSH_OF_THE_LOG 2

int main(int count, char **arguments) {
    uint32_t how = WITHOUT_A_FLUSH_OF_THE_LOG;
    int directory = count == 2 ? open(arguments[1], O_RDONLY | O_DIRECTORY) : -1;
    if (directory >= 0) {
        if (getchar() == EOF) return 0;
        if (ioctl(directory, FS_IOC_SHUTDOWN, &how) == 0) return 0;
    }
    perror("the power cannot be cut");
    return 1;
}
