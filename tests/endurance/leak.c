// Loaded before hydrantd (LD_PRELOAD), it leaks LEAK_BYTES of touched memory per accepted
// connection, which tests/endurance/soak must detect.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>

int accept4(int listening, struct sockaddr* address, socklen_t* length, int flags) {
  static int (*next)(int, struct sockaddr*, socklen_t*, int);
  if (next == NULL) *(void**)&next = dlsym(RTLD_NEXT, "accept4");
  const int fd = next(listening, address, length, flags);
  const char* bytes = getenv("LEAK_BYTES");
  if (fd >= 0 && bytes != NULL) {
    const size_t size = strtoul(bytes, NULL, 10);
    volatile char* lost = malloc(size);
    for (size_t i = 0; lost != NULL && i < size; i += 4096) lost[i] = 1;
  }
  return fd;
}
