#include "server/config/config_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "fmt/format.h"
#include "server/log/escape.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/parser.h"

namespace nibble::server {
namespace {

struct Node {
  enum class Kind { kNull, kPlain, kQuoted, kList, kMap };
  Kind kind = Kind::kNull;
  int line = 0;  // counted from 1
  std::string text;
  std::vector<Node> children;  // of a map: key, value, key, value, ...
};

// Builds the tree of one document from the parser's events. What a configuration never has (depth,
// anchors, aliases, tags) ends the parsing there: no file makes it recurse or grow.
class TreeBuilder final : public YAML::EventHandler {
 public:
  // A right file has three levels; a few more let a wrong one be told what is wrong.
  static constexpr size_t kMaxDepth = 8;

  Node Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Begin(Node::Kind::kNull, mark, "", anchor);
    open_.pop_back();
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw YAML::ParserException(mark, "aliases are not taken");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Begin(tag == "!" ? Node::Kind::kQuoted : Node::Kind::kPlain, mark, tag, anchor).text = value;
    open_.pop_back();
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Begin(Node::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Begin(Node::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  Node& Begin(Node::Kind kind, const YAML::Mark& mark, const std::string& tag,
              YAML::anchor_t anchor) {
    if (anchor != 0) throw YAML::ParserException(mark, "anchors are not taken");
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw YAML::ParserException(mark, "tags are not taken");
    }
    if (open_.size() == kMaxDepth) {
      throw YAML::ParserException(mark, fmt::format("nested deeper than {} levels", kMaxDepth));
    }
    Node& node = open_.empty() ? root_ : open_.back()->children.emplace_back();
    node.kind = kind;
    node.line = mark.line + 1;
    open_.push_back(&node);
    return node;
  }

  Node root_;
  // The chain from the root to the node being filled. A vector of children grows only while none of
  // its elements is in the chain.
  std::vector<Node*> open_;
};

// How a value reads in a message.
std::string Received(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMap:
      return "a map";
    case Node::Kind::kQuoted:
      return fmt::format("the text {}", Quote(node.text));
    case Node::Kind::kPlain:
      break;
  }
  return Quote(node.text);
}

// Unquoted words that YAML or JSON reads as something other than text.
bool IsNumberOrBool(const std::string& word) {
  if (word == "true" || word == "false") return true;
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error != std::errc::invalid_argument && end == word.data() + word.size();
}

bool IsText(const Node& node) {
  return node.kind == Node::Kind::kQuoted ||
         (node.kind == Node::Kind::kPlain && !IsNumberOrBool(node.text));
}

class FileReader {
 public:
  FileReader(const std::string& path, Draft* draft) : path_(path), draft_(draft) {}

  void Read() {
    const std::optional<std::string> text = Load();
    if (!text) return;
    std::istringstream stream(*text);
    Node root;
    try {
      YAML::Parser parser(stream);
      TreeBuilder builder;
      parser.HandleNextDocument(builder);
      root = builder.Take();
      TreeBuilder second;
      if (parser.HandleNextDocument(second)) {
        draft_->faults.Add(path_, "expected one document, received several");
      }
    } catch (const YAML::Exception& error) {
      draft_->faults.Add(At(error.mark.line + 1),
                         fmt::format("not a configuration: {}", error.msg));
      return;
    }
    if (root.kind == Node::Kind::kMap) {
      TakeMap(root);
    } else if (root.kind != Node::Kind::kNull) {
      draft_->faults.AddMismatch(At(root.line), "a map of options", Received(root));
    }
  }

 private:
  std::string At(int line) const { return fmt::format("{}:{}", path_, line); }
  std::string At(int line, std::string_view key) const {
    return fmt::format("{}:{}: {}", path_, line, key);
  }

  std::optional<std::string> Load() {
    std::string text(kMaxConfigFileBytes + 1, '\0');
    errno = 0;
    std::ifstream file(path_, std::ios::binary);
    if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (file.bad() || !(file || file.eof())) {
      draft_->faults.AddMismatch(
          "--config", "a file that can be read",
          fmt::format("{} ({})", Quote(path_), std::strerror(errno == 0 ? EIO : errno)));
      return std::nullopt;
    }
    text.resize(static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxConfigFileBytes) {
      draft_->faults.AddMismatch(
          path_, fmt::format("a file of at most {} bytes", kMaxConfigFileBytes), "a larger one");
      return std::nullopt;
    }
    const size_t good = std::min(Utf8PrefixBytes(text), text.find('\0'));
    if (good < text.size()) {
      const auto line = std::count(text.begin(), text.begin() + static_cast<int64_t>(good), '\n');
      draft_->faults.AddMismatch(
          At(static_cast<int>(line) + 1), "UTF-8 text",
          fmt::format("the byte 0x{:02x}", static_cast<unsigned char>(text[good])));
      return std::nullopt;
    }
    return text;
  }

  void TakeMap(const Node& root) {
    std::map<std::string_view, int> seen;  // key -> line
    for (size_t i = 0; i + 1 < root.children.size(); i += 2) {
      const Node& key = root.children[i];
      if (key.kind != Node::Kind::kPlain && key.kind != Node::Kind::kQuoted) {
        draft_->faults.AddMismatch(At(key.line), "the name of an option", Received(key));
        continue;
      }
      const auto [first, added] = seen.emplace(key.text, key.line);
      if (!added) {
        draft_->faults.Add(At(key.line), fmt::format("{} is given twice, first on line {}",
                                                     Quote(key.text), first->second));
        continue;
      }
      TakeKey(key, root.children[i + 1]);
    }
  }

  void TakeKey(const Node& key, const Node& value) {
    const auto options = Options();
    const auto option = std::find_if(options.begin(), options.end(),
                                     [&](const Option& o) { return o.key == key.text; });
    if (option == options.end()) {
      UnknownKey(key);
    } else if (!option->in_file) {
      draft_->faults.Add(At(key.line),
                         fmt::format("{} is not an option of a file, only the flag {}", option->key,
                                     FlagOf(*option)));
    } else if (option->Is<Option::List>()) {
      TakeList(*option, value, At(key.line, option->key));
    } else if (option->Is<Option::Models>()) {
      TakeModels(*option, value, At(key.line, option->key));
    } else {
      TakeScalar(*option, value, At(key.line, option->key));
    }
  }

  void UnknownKey(const Node& key) {
    // The search for a near name is not worth more than the faults that are shown.
    std::string near;
    if (draft_->faults.listing()) {
      std::vector<std::string> known;
      for (const Option& option : Options()) {
        if (option.in_file) known.emplace_back(option.key);
      }
      near = Nearest(key.text, known);
    }
    draft_->faults.Add(At(key.line),
                       fmt::format("unknown key {}{}", Quote(key.text),
                                   near.empty() ? "" : "; did you mean " + near + "?"));
  }

  void Mismatch(const Option& option, const std::string& where, std::string_view expected,
                const Node& received) {
    draft_->faults.AddMismatch(where, expected, Received(received));
    draft_->faulty.insert(option.key);
    draft_->where[option.key] = where;
  }

  void TakeScalar(const Option& option, const Node& value, const std::string& where) {
    const bool scalar = value.kind == Node::Kind::kPlain || value.kind == Node::Kind::kQuoted;
    if (option.Is<Option::Text>() && !IsText(value)) {
      return Mismatch(option, where, "text (in quotes if it looks like a number)", value);
    }
    if (!scalar || (value.kind == Node::Kind::kQuoted && !option.Is<Option::Text>() &&
                    !option.Is<Option::Bytes>())) {
      return Mismatch(option, where, ExpectedOf(option), value);
    }
    SetValue(option, value.text, where, draft_);
  }

  void TakeList(const Option& option, const Node& value, const std::string& where) {
    if (IsText(value)) {
      // A list of one may be written without its brackets.
      Clear(option, draft_);
      SetValue(option, value.text, where, draft_);
      return;
    }
    if (value.kind != Node::Kind::kList) {
      return Mismatch(option, where, ExpectedOf(option), value);
    }
    Clear(option, draft_);
    for (const Node& element : value.children) {
      if (IsText(element)) {
        SetValue(option, element.text, At(element.line, option.key), draft_);
      } else {
        Mismatch(option, At(element.line, option.key), "text", element);
      }
    }
  }

  void TakeModels(const Option& option, const Node& value, const std::string& where) {
    if (value.kind != Node::Kind::kMap) {
      return Mismatch(option, where, "a map of NAME: DIR", value);
    }
    Clear(option, draft_);
    for (size_t i = 0; i + 1 < value.children.size(); i += 2) {
      const Node& name = value.children[i];
      const Node& directory = value.children[i + 1];
      const std::string at = At(name.line, option.key);
      if (name.kind != Node::Kind::kPlain && name.kind != Node::Kind::kQuoted) {
        Mismatch(option, at, "the name of a model", name);
      } else if (!IsText(directory)) {
        Mismatch(option, at, fmt::format("the directory of model {} as text", Quote(name.text)),
                 directory);
      } else {
        AddModel(option, name.text, directory.text, at, draft_);
      }
    }
  }

  const std::string& path_;
  Draft* const draft_;
};

}  // namespace

void ReadConfigFile(const std::string& path, Draft* draft) { FileReader(path, draft).Read(); }

}  // namespace nibble::server
