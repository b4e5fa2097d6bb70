#include <gperftools/malloc_extension.h>

#include "server/allocator/allocator.h"

namespace nibble::server {

const char* AllocatorName() { return "tcmalloc"; }

void ReleaseFreeMemory() { MallocExtension::instance()->ReleaseFreeMemory(); }

}  // namespace nibble::server
