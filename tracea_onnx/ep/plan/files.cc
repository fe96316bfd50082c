#include "plan/files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#if defined(_WIN32)
#include <io.h>
#include <process.h>
#include <windows.h>
#else
#include <unistd.h>
#endif

namespace tracea {
namespace {

#if defined(_WIN32)

std::wstring wide(const std::string& text) {
  std::wstring out(
      size_t(MultiByteToWideChar(CP_UTF8, 0, text.data(), int(text.size()), nullptr, 0)), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, text.data(), int(text.size()), out.data(), int(out.size()));
  return out;
}
int open_descriptor(const std::string& path, int flags) {
  return _wopen(wide(path).c_str(), flags | _O_BINARY | _O_NOINHERIT, _S_IREAD | _S_IWRITE);
}
bool replace(const std::string& from, const std::string& to) {
  return MoveFileExW(wide(from).c_str(), wide(to).c_str(), MOVEFILE_REPLACE_EXISTING);
}
void remove_file(const std::string& path) { _wunlink(wide(path).c_str()); }

#else

int open_descriptor(const std::string& path, int flags) {
  const int special = flags & O_CREAT ? 0 : O_NOFOLLOW | O_NONBLOCK;
  return open(path.c_str(), flags | special | O_CLOEXEC, 0666);
}
bool replace(const std::string& from, const std::string& to) {
  return !rename(from.c_str(), to.c_str());
}
void remove_file(const std::string& path) { unlink(path.c_str()); }

#endif

// Moves all bytes, or returns false; a call moves part of them, and a signal may interrupt it.
template <class Call, class Byte>
bool transfer(Call call, int fd, Byte* data, size_t bytes) {
  constexpr size_t kMost = size_t(1) << 30;
  for (size_t done = 0; done < bytes;) {
    const auto n = call(fd, data + done, unsigned(std::min(bytes - done, kMost)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += size_t(n);
  }
  return true;
}

}  // namespace

std::string utf8(const PathChar* path) {
  if (!path) return "";
#if defined(_WIN32)
  const int length = WideCharToMultiByte(CP_UTF8, 0, path, -1, nullptr, 0, nullptr, nullptr);
  std::string out(size_t(length > 0 ? length : 1), '\0');
  WideCharToMultiByte(CP_UTF8, 0, path, -1, out.data(), length, nullptr, nullptr);
  out.pop_back();  // the null
  return out;
#else
  return path;
#endif
}

FILE* open_file(const std::string& path, const char* mode) {
#if defined(_WIN32)
  return _wfopen(wide(path).c_str(), wide(mode).c_str());
#else
  return fopen(path.c_str(), mode);
#endif
}

std::string folder_of(const std::string& path) {
  return path.substr(0, path.find_last_of(kPathSeparators) + 1);
}

bool read_regular_file(const std::string& path, std::string& bytes) {
  const int fd = open_descriptor(path, O_RDONLY);
  struct stat info;
  bool good = fd >= 0 && !fstat(fd, &info) && (info.st_mode & S_IFMT) == S_IFREG;
  if (good) {
    bytes.resize(size_t(info.st_size));
    good = transfer([](auto... given) { return read(given...); }, fd, bytes.data(), bytes.size());
  }
  if (fd >= 0) close(fd);
  return good;
}

std::string write_whole_file(const std::string& path, const std::string& bytes) {
  const std::string temporary = path + ".tmp" + std::to_string(getpid());
  const int fd = open_descriptor(temporary, O_WRONLY | O_CREAT | O_EXCL);
  bool good = fd >= 0 && transfer([](auto... given) { return write(given...); }, fd, bytes.data(),
                                  bytes.size());
  if (fd >= 0 && close(fd)) good = false;
  if (good && replace(temporary, path)) return "";
  const std::string why = strerror(errno);
  if (fd >= 0) remove_file(temporary);
  return why;
}

}  // namespace tracea
