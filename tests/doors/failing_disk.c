/* Loaded before libc: every write and sync of a file whose path ends in $FAIL_SUFFIX fails with $FAIL_ERRNO while $FAIL_FLAG exists.
   With $FAIL_READS every read of it does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd, int reads) {
  const char *suffix = getenv("FAIL_SUFFIX"), *flag = getenv("FAIL_FLAG"), *number = getenv("FAIL_ERRNO");
  char link[64], path[4096];
  if (!suffix || !flag || !number || (getenv("FAIL_READS") != NULL) != reads || access(flag, F_OK) != 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  size_t want = strlen(suffix);
  if ((size_t)n < want || strcmp(path + n - want, suffix) != 0) return 0;
  errno = atoi(number);
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) { return fails(fd, 0) ? -1 : REAL(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return fails(fd, 0) ? -1 : REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return fails(fd, 0) ? -1 : REAL(pwrite64)(fd, data, size, at); }
int fsync(int fd) { return fails(fd, 0) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails(fd, 0) ? -1 : REAL(fdatasync)(fd); }
ssize_t read(int fd, void *data, size_t size) { return fails(fd, 1) ? -1 : REAL(read)(fd, data, size); }
ssize_t pread(int fd, void *data, size_t size, off_t at) { return fails(fd, 1) ? -1 : REAL(pread)(fd, data, size, at); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { return fails(fd, 1) ? -1 : REAL(pread64)(fd, data, size, at); }
