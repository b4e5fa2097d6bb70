// The output head of a model that shares it with the embedding (tie_word_embeddings).
#ifndef NIBBLE_SERVER_CHECKPOINT_TIED_HEAD_H_
#define NIBBLE_SERVER_CHECKPOINT_TIED_HEAD_H_

#include "server/checkpoint/detect.h"

namespace nibble::checkpoint {

// The last component of `prefix` is the name of an embedding.
bool IsEmbedding(std::string_view prefix);

// In a tied model: makes the head a layer of the embedding's tensors, in place of tensors of its
// own.
void TieHead(const Context& context, DetectedLayers* layers);

}  // namespace nibble::checkpoint

#endif  // NIBBLE_SERVER_CHECKPOINT_TIED_HEAD_H_
