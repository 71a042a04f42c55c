// The default cache of requests that name no policy, per listening address. Plain data.
#ifndef HYDRANT_SERVER_WIRE_DEFAULT_CACHE_H_
#define HYDRANT_SERVER_WIRE_DEFAULT_CACHE_H_

#include <string>

#include "engine/cache/cache_spec.h"

namespace hydrant {

struct DefaultCache {
  std::string text = "full";  // as the operator wrote it
  CacheSpec spec = {};        // ParseDefaultCachePolicy() of `text`
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_WIRE_DEFAULT_CACHE_H_
