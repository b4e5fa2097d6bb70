// Connections that are refused so that the process keeps descriptors for everything else.
#ifndef NIBBLE_SERVER_ACCEPT_H_
#define NIBBLE_SERVER_ACCEPT_H_

namespace nibble::server {

// Raises the limit of descriptors to what the process may have. A program that calls this refuses,
// from its start, connections to its gRPC listeners that would leave fewer descriptors than a
// reserve: they are closed as they come in. gRPC itself would take them until none is left and then
// stop listening for good.
void UseAllDescriptors();

}  // namespace nibble::server

#endif  // NIBBLE_SERVER_ACCEPT_H_
