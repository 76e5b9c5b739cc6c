// Threads that help a caller through the parts of a job. The caller waits only for parts that a helper has begun.
#pragma once
#include <functional>

namespace edgeflow {

// Calls part(0) … part(count - 1), each once, on up to `threads` threads; returns when all of them are done. A second
// caller at the same time has no helpers.
void share(long count, int threads, const std::function<void(long)>& part);

}  // namespace edgeflow
