// usage: transport_peer serve MODE ADDRESS[,ADDRESS...]
//        transport_peer call MODE ADDRESS ROWS CLIENTS SECONDS
// tests/bench/transport.py runs it.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/bench/transport_modes.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "serve") {
    nibble::bench::ServeOptions options{words[1], {}};
    for (size_t begin = 0; begin <= words[2].size();) {
      const size_t end = std::min(words[2].find(',', begin), words[2].size());
      options.addresses.push_back(words[2].substr(begin, end - begin));
      begin = end + 1;
    }
    return nibble::bench::Serve(options);
  }
  if (words.size() == 6 && words[0] == "call") {
    return nibble::bench::Call({words[1], words[2], std::atoll(words[3].c_str()),
                                std::atoi(words[4].c_str()), std::atof(words[5].c_str())});
  }
  std::fputs("transport_peer: expected serve or call; see tests/bench/transport.py\n", stderr);
  return 2;
}
