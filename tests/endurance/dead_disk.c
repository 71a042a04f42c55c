// Simulates a disk that stops responding, for LD_PRELOAD: once the file DEAD_DISK_SINCE exists,
// open() and stat() of paths in the folder DEAD_DISK do not return.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void Touch(const char* path) {
  const char *folder = getenv("DEAD_DISK"), *since = getenv("DEAD_DISK_SINCE");
  if (folder == NULL || since == NULL || path == NULL || strncmp(path, folder, strlen(folder)) != 0) return;
  while (access(since, F_OK) == 0) pause();
}

#define NEXT(name)               \
  static __typeof__(&name) next; \
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, #name)

#define OPEN(name)                                                                   \
  int name(const char* path, int flags, ...) {                                       \
    NEXT(name);                                                                      \
    va_list list;                                                                    \
    va_start(list, flags);                                                           \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;    \
    va_end(list);                                                                    \
    Touch(path);                                                                     \
    return next(path, flags, mode);                                                  \
  }
OPEN(open)
OPEN(open64)

int stat(const char* restrict path, struct stat* restrict found) {
  NEXT(stat);
  Touch(path);
  return next(path, found);
}
