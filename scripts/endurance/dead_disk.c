// Loaded before hydrantd (LD_PRELOAD), it makes DEAD_DISK, a folder, a disk that stops to answer when the file DEAD_DISK_SINCE is there:
// a call that opens or looks at a file in it does not return.
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

#define NEXT(name) \
  static __typeof__(&name) next; \
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, #name)

static mode_t ModeOf(int flags, va_list list) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; }

int open(const char* path, int flags, ...) {
  NEXT(open);
  va_list list;
  va_start(list, flags);
  const mode_t mode = ModeOf(flags, list);
  va_end(list);
  Touch(path);
  return next(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  NEXT(open64);
  va_list list;
  va_start(list, flags);
  const mode_t mode = ModeOf(flags, list);
  va_end(list);
  Touch(path);
  return next(path, flags, mode);
}

int stat(const char* restrict path, struct stat* restrict found) {
  NEXT(stat);
  Touch(path);
  return next(path, found);
}
