#include <malloc.h>

#include "server/allocator/allocator.h"

namespace nibble::server {

const char* AllocatorName() { return "malloc"; }

void ReleaseFreeMemory() { malloc_trim(0); }

}  // namespace nibble::server
