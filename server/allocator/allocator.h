// The allocator that the process is linked with.
#ifndef NIBBLE_SERVER_ALLOCATOR_ALLOCATOR_H_
#define NIBBLE_SERVER_ALLOCATOR_ALLOCATOR_H_

namespace nibble::server {

// "tcmalloc" or "malloc", for the log.
const char* AllocatorName();

// Gives freed memory that the allocator keeps for later back to the system. Takes milliseconds: for
// times when nothing else is to be done.
void ReleaseFreeMemory();

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_ALLOCATOR_ALLOCATOR_H_
