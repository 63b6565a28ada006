/* A disk that fails when told: loaded with LD_PRELOAD, it fails writes and syncs of files whose name holds "spool".
 *
 * The file named by FAULT_DISK holds an errno (5: EIO, 28: ENOSPC); while it is not there, all is well.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd) {
    char link[64], path[4096];
    const char *order = getenv("FAULT_DISK");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!order || length < 0) return 0;
    path[length] = 0;
    if (!strstr(path, "spool.sqlite")) return 0;
    FILE *file = fopen(order, "r");
    if (!file) return 0;
    int code = 0;
    if (fscanf(file, "%d", &code) != 1) code = EIO;
    fclose(file);
    errno = code;
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
ssize_t write(int fd, const void *data, size_t size) { return fails(fd) ? -1 : NEXT(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return fails(fd) ? -1 : NEXT(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return fails(fd) ? -1 : NEXT(pwrite64)(fd, data, size, at); }
int fsync(int fd) { return fails(fd) ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return fails(fd) ? -1 : NEXT(fdatasync)(fd); }
