// Shared memory that cuda_gemv_chain has for rows of x: the selector and the launchers agree on it.
#ifndef NIBBLE_KERNELS_CORE_CHAIN_ROOM_H_
#define NIBBLE_KERNELS_CORE_CHAIN_ROOM_H_

namespace nibble::core {

// Bytes, at least, beside the slots of the warps and, of FP4 and NF4, a table.
inline constexpr int kChainRoom = 154112;
inline constexpr int kChainRoomBesideTable = 143872;
// Of FP8, beside slots of its own size, and where two blocks have half of K each.
inline constexpr int kChainRoomFp8 = 166400;
inline constexpr int kChainRoomOfHalves = 156160;
// A row of x takes the bytes of its whole units, and with codes of 4 bits so many more.
inline constexpr int kChainRowSkew = 64;

}  // namespace nibble::core

#endif  // NIBBLE_KERNELS_CORE_CHAIN_ROOM_H_
