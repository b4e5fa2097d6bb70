#include "server/autotune/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>

#include "fmt/format.h"

namespace nibble::server {
namespace {

// The note NT_GNU_BUILD_ID among `bytes` of notes, in hexadecimal; empty where there is none.
std::string BuildIdIn(const char* notes, size_t bytes) {
  constexpr size_t kNoteAlign = 4;
  const auto align = [](size_t size) { return (size + kNoteAlign - 1) / kNoteAlign * kNoteAlign; };
  std::string id;
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof(note));
    const size_t name = at + sizeof(note);
    const size_t content = name + align(note.n_namesz);
    const size_t end = content + align(note.n_descsz);
    if (end > bytes) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(ELF_NOTE_GNU) &&
        std::memcmp(notes + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
      for (size_t i = 0; i < note.n_descsz; ++i) {
        id += fmt::format("{:02x}", static_cast<unsigned char>(notes[content + i]));
      }
      break;
    }
    at = end;
  }
  return id;
}

int AddObject(dl_phdr_info* object, size_t, void* to) {
  const std::string_view path = object->dlpi_name;
  // The program comes first and has no name.
  if (!path.empty() && path.find("libnibble_cuda") == std::string_view::npos) return 0;
  for (size_t i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const char*>(object->dlpi_addr + part.p_vaddr);
    const std::string id = BuildIdIn(notes, part.p_memsz);
    if (!id.empty()) *static_cast<std::string*>(to) += " " + id;
  }
  return 0;
}

}  // namespace

std::string BuildId(std::string_view version) {
  std::string id(version);
  dl_iterate_phdr(&AddObject, &id);
  return id;
}

}  // namespace nibble::server
