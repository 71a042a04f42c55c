// Part of every program that is built with AddressSanitizer: the leaks of other projects' libraries
// that LeakSanitizer does not report.

// NOLINTBEGIN(bugprone-reserved-identifier): LeakSanitizer's name
extern "C" const char* __lsan_default_suppressions();

const char* __lsan_default_suppressions() {
  // c-ares 1.18.1, Debian 12's: its copy of the name "localhost", which gRPC resolves.
  return "leak:libcares.so\n";
}
// NOLINTEND(bugprone-reserved-identifier)
