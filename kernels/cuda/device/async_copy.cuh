// Hopper's asynchronous copies and barriers: thin names for PTX of compute capability 9.0.
// Addresses of shared memory are 32-bit shared-window addresses.
#ifndef NIBBLE_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_
#define NIBBLE_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

namespace nibble::cuda {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// `value` as something the compiler keeps in a register: it would compute a shared address anew at
// every use, from a special register that is slow to read.
__device__ inline uint32_t Kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The same of an address of 64 bits.
template <class T>
__device__ inline T* KeptPointer(T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

// A load that keeps its place among the waits; any value unless `there`.
__device__ inline uint4 LoadGlobal16BytesIf(bool there, const void* from) {
  uint4 v;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from), "r"(static_cast<uint32_t>(there))
      : "memory");
  return v;
}

// Loads of shared memory that keep their place among the barriers.
__device__ inline uint4 LoadShared16Bytes(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
// Any value unless `there`.
__device__ inline uint4 LoadShared16BytesIf(bool there, uint32_t from) {
  uint4 v;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "r"(from), "r"(static_cast<uint32_t>(there))
      : "memory");
  return v;
}
__device__ inline uint2 LoadShared8Bytes(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}
// Four matrices of 8 rows of 16 bytes: lane l gives the place of row l % 8 of matrix l / 8, and
// gets bytes 4 (l % 4) and up of row l / 4 of each.
__device__ inline uint4 LoadSharedMatrices(uint32_t from) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline float2 LoadShared2Floats(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}
__device__ inline uint32_t LoadShared4Bytes(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
__device__ inline float LoadShared1Float(uint32_t from) {
  return __uint_as_float(LoadShared4Bytes(from));
}
__device__ inline uint32_t LoadShared2Bytes(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}

__device__ inline void StoreShared2Floats(uint32_t to, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(first), "f"(second) : "memory");
}

__device__ inline void StoreShared8Bytes(uint32_t to, uint32_t first, uint32_t second) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second) : "memory");
}
__device__ inline void StoreShared16Bytes(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ inline void StoreShared2Bytes(uint32_t to, uint16_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(value) : "memory");
}
__device__ inline void StoreShared4Bytes(uint32_t to, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
__device__ inline void StoreShared1Float(uint32_t to, float value) {
  StoreShared4Bytes(to, __float_as_uint(value));
}

// A barrier whose phase ends after `arrivals` arrivals and the bytes expected in it.
__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Makes initialized barriers visible to the copy engine.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What this thread wrote to shared memory is visible to the copy engine and to wgmma.
__device__ inline void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// A warp's arrivals once all its lanes are here: as many as a barrier counts for each warp. One
// lane would do after __syncwarp, but compute-sanitizer's racecheck does not see that order, and
// all cost no more: 1.00 +- 0.01 of the time with 1 to 64 rows, H200.
inline constexpr int kWarpArrivals = 32;
__device__ inline void ArriveByWarp(uint32_t barrier) {
  __syncwarp();
  Arrive(barrier);
}

// The barriers of a ring's stage, or of all: filled by one thread's copies, given back by `warps`.
__device__ inline void InitStage(uint32_t full, uint32_t empty, int stage, int warps) {
  InitBarrier(full + stage * 8, 1);
  InitBarrier(empty + stage * 8, warps * kWarpArrivals);
}
__device__ inline void InitRing(uint32_t full, uint32_t empty, int stages, int warps) {
  for (int stage = 0; stage < stages; ++stage) InitStage(full, empty, stage, warps);
}

// Waits for the end of the phase of this parity. The phase before must be known to have ended:
// until then this one counts as the last but one, which has.
__device__ inline void WaitBarrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// The same as a loop of two instructions, for loops that have few.
__device__ inline void AwaitPhase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Copies `bytes` (a multiple of 16, as are both addresses) and tells `barrier`.
__device__ inline void BulkCopy(uint32_t to_shared, const void* from, uint32_t bytes,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// Copies 16 bytes without the copy engine; the thread that asked waits for the group they are in.
__device__ inline void CopyAsync16Bytes(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// The same of lanes that have something to copy, without a branch among the lanes.
__device__ inline void CopyAsync16BytesIf(bool there, uint32_t to_shared, const void* from) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %2, 0;\n"
      "@p cp.async.cg.shared.global [%0], [%1], 16;\n"
      "}" ::"r"(to_shared),
      "l"(from), "r"(static_cast<uint32_t>(there))
      : "memory");
}
__device__ inline void EndAsyncCopyGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Arrives at a barrier, which counts it, once the thread's copies so far are there.
__device__ inline void ArriveAfterAsyncCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Until at most kNewest groups are on their way; 0: nothing at all.
template <int kNewest>
__device__ inline void WaitForAsyncCopies() {
  if constexpr (kNewest == 0) {
    asm volatile("cp.async.wait_all;" ::: "memory");
  } else {
    asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
  }
}

__device__ inline uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Bytes stay as long as they would without one.
__device__ inline uint64_t UnchangedPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The same for bytes that are read once: they leave the L2 first.
__device__ inline void BulkCopyOnce(uint32_t to_shared, const void* from, uint32_t bytes,
                                    uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Asks for a tensor map before it is used.
__device__ inline void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box of `map` at these coordinates, innermost first. What lies outside of the matrix
// comes as zeros, and counts.
__device__ inline void TensorCopy(uint32_t to_shared, const CUtensorMap& map, int32_t k,
                                  int32_t row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to_shared),
      "l"(&map), "r"(k), "r"(row), "r"(barrier)
      : "memory");
}
__device__ inline void TensorCopyOnce(uint32_t to_shared, const CUtensorMap& map, int32_t k,
                                      int32_t row, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to_shared),
      "l"(&map), "r"(k), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
// Of three dimensions, from the start of the innermost on.
__device__ inline void TensorCopyUnits(uint32_t to_shared, const CUtensorMap& map, int32_t second,
                                       int32_t third, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3, %4}], [%5];" ::"r"(to_shared),
      "l"(&map), "r"(0), "r"(second), "r"(third), "r"(barrier)
      : "memory");
}
// The same for bytes that are read once.
__device__ inline void TensorCopyUnitsOnce(uint32_t to_shared, const CUtensorMap& map,
                                           int32_t second, int32_t third, uint32_t barrier,
                                           uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to_shared),
      "l"(&map), "r"(0), "r"(second), "r"(third), "r"(barrier), "l"(policy)
      : "memory");
}

// A barrier of all threads of the cluster that have not ended, in two steps. What others do after
// the second comes after what this thread did before the first if it released that.
template <bool kReleases>
__device__ inline void ArriveCluster() {
  if constexpr (kReleases) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  } else {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
}
__device__ inline void AwaitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Both; what all wrote to shared memory before is seen.
__device__ inline void SyncCluster() {
  ArriveCluster<true>();
  AwaitCluster();
}
__device__ inline uint32_t RankInCluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The place of an own shared address in block `rank` of the cluster.
__device__ inline uint32_t SharedOf(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// 16 bytes to another block (addresses of SharedOf), which count as bytes copied on its barrier.
__device__ inline void PushFloats(uint32_t to, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ inline float4 LoadShared4Floats(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline void StoreShared4Floats(uint32_t to, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

// On a barrier of any block of the cluster (SharedOf).
__device__ inline void ArriveInCluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
// WaitBarrier where other blocks of the cluster arrive or push: what they pushed is seen.
__device__ inline void WaitBarrierOfCluster(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// BulkCopy to the same place in every block of `mask`, telling the barrier at the same place there.
__device__ inline void BulkCopyToCluster(uint32_t to_shared, const void* from, uint32_t bytes,
                                         uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "h"(mask)
      : "memory");
}

}  // namespace nibble::cuda

#endif  // NIBBLE_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_
