// What the machine is: its processor, memory and memory bandwidth.
#ifndef NIBBLE_KERNELS_CPU_HOST_H_
#define NIBBLE_KERNELS_CPU_HOST_H_

#include <cstdint>
#include <string>

#include "kernels/cpu/thread_pool.h"

namespace nibble::cpu {

// The processor's model name, or "CPU" where the system does not tell.
std::string ProcessorName();

// Physical memory, or the limit of the control group (version 2) where that is lower. 0: unknown.
uint64_t HostMemoryBytes();

// Bytes per second that the pool's threads read together from a buffer larger than the second-level
// caches; the best of a few passes, some tens of milliseconds in all. 0 where memory for it is
// short.
double MeasureReadBandwidth(ThreadPool& pool);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_HOST_H_
