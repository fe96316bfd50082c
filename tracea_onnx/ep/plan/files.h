// Files as each system has them. Names are UTF-8 on all of them.
#pragma once
#include <cstdio>
#include <string>

namespace tracea {

#if defined(_WIN32)
using PathChar = wchar_t;                        // ORTCHAR_T: what paths are made of in ORT's API
constexpr const char* kPathSeparators = "/\\:";  // what no name of a file has
#else
using PathChar = char;
constexpr const char* kPathSeparators = "/";
#endif

// "" for null.
std::string utf8(const PathChar* path);

// fopen.
FILE* open_file(const std::string& path, const char* mode);

// Folder of a file with the separator behind it; "" for the working directory.
std::string folder_of(const std::string& path);

// The content of a regular file: false for all others, which are neither followed nor waited for.
bool read_regular_file(const std::string& path, std::string& bytes);

// The file appears whole or not at all. Returns why not, or "".
std::string write_whole_file(const std::string& path, const std::string& bytes);

}  // namespace tracea
