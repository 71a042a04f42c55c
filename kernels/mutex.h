// A mutex that clang's thread safety analysis understands: it proves at compile time that members
// marked HYDRANT_GUARDED_BY are read and written only while their mutex is held
// (scripts/thread-safety). GCC ignores the annotations. A Mutex is a std::mutex, so ThreadSanitizer
// sees every lock.
//
// The annotation of a lambda is in front of its body, as for the predicate of a wait:
//   changed_.wait(lock.native(), [this]() HYDRANT_REQUIRES(mutex_) { return stopping_; });
#ifndef HYDRANT_KERNELS_MUTEX_H_
#define HYDRANT_KERNELS_MUTEX_H_

#include <mutex>

#if defined(__clang__)
#define HYDRANT_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define HYDRANT_THREAD_ANNOTATION(attribute)
#endif

// On a member: the mutex that a thread holds to read or write it.
#define HYDRANT_GUARDED_BY(mutex) HYDRANT_THREAD_ANNOTATION(guarded_by(mutex))
// On a pointer: the mutex that a thread holds to use the object it points to.
#define HYDRANT_PT_GUARDED_BY(mutex) HYDRANT_THREAD_ANNOTATION(pt_guarded_by(mutex))
// On a function: its caller holds the mutex.
#define HYDRANT_REQUIRES(...) HYDRANT_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
// On a function: its caller does not hold the mutex, because the function locks it.
#define HYDRANT_EXCLUDES(...) HYDRANT_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
// On a function that returns a reference to the mutex.
#define HYDRANT_RETURN_CAPABILITY(mutex) HYDRANT_THREAD_ANNOTATION(lock_returned(mutex))
// On a function that is safe for a reason that the analysis cannot see; a comment gives the reason.
#define HYDRANT_NO_THREAD_SAFETY_ANALYSIS HYDRANT_THREAD_ANNOTATION(no_thread_safety_analysis)

// For the two classes below only.
#define HYDRANT_CAPABILITY(kind) HYDRANT_THREAD_ANNOTATION(capability(kind))
#define HYDRANT_SCOPED_CAPABILITY HYDRANT_THREAD_ANNOTATION(scoped_lockable)
#define HYDRANT_ACQUIRE(...) HYDRANT_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define HYDRANT_RELEASE(...) HYDRANT_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace hydrant {

// Only a MutexLock locks it.
class HYDRANT_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex from its construction to its destruction, except between Unlock() and Lock().
// Belongs to one thread.
class HYDRANT_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HYDRANT_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() HYDRANT_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Lock() HYDRANT_ACQUIRE() { lock_.lock(); }
  void Unlock() HYDRANT_RELEASE() { lock_.unlock(); }

  // For the waits of a std::condition_variable, which hold the mutex again when they return.
  std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace hydrant

#endif  // HYDRANT_KERNELS_MUTEX_H_
