// Convolutions of which each reads what the one before it wrote, in bands of rows: a convolution,
// the depthwise one that reads it, and the pointwise one that reads that; the first or the last may
// be missing. What lies between them is written and read in scratch of the thread, which stays in
// the second cache, where whole images would not.
//
// Each band computes, of the first convolution, the rows that the windows of its own rows reach and
// the band before did not have. Kernels get launches of a few rows; they compute what they would of
// the whole image, to the bit.
#pragma once
#include <optional>
#include <vector>

#include "cpu/plan.h"

namespace tracea {

// Notes such launches in `Plan::together`, whatever their sizes.
void find_bands(Plan& plan);

class Bands {
 public:
  // Of launches that `find_bands` noted, bound to sizes; nullopt where they had better run one by
  // one. launches, kernels: by place in the plan's run.
  static std::optional<Bands> make(const Plan& plan, const Together& which,
                                   const std::vector<Launch>& launches,
                                   const std::vector<const Kernel*>& kernels);

  int64_t tasks(int threads) const;
  size_t scratch() const { return scratch_; }
  void run(int64_t task, int64_t tasks, void* scratch) const;
  // Multiply-adds of each launch, in the order of `Together::launches`.
  std::vector<double> work() const;

 private:
  // A launch with parameters of the convolution families, which begin alike.
  struct Stage {
    Launch launch{};
    const Kernel* kernel = nullptr;
    int integers = 0;  // with the variant's number
    explicit operator bool() const { return kernel != nullptr; }
    int64_t at(int parameter) const { return launch.i[parameter]; }
    const float* operand(int k) const { return static_cast<const float*>(launch.buf[k]); }
    double macs() const;
  };
  // Where a stage reads or writes an image: an address and pitches of a pixel and of a row.
  struct Image {
    float* at;
    int64_t cs, rs;
  };
  struct Scratch {
    float *wide, *narrow;  // rows that the depthwise convolution reads and writes
    void* rest;
  };

  static Image image(const Stage& stage, int operand, int pitches, int64_t n, int64_t row);
  // Rows of a stage; `padded`: x has the border of the whole image around it.
  void part(const Stage& stage, const Image& x, const Image& y, int64_t n, int64_t row,
            int64_t rows, bool padded, void* scratch) const;
  void rows_of_image(int64_t n, int64_t first, int64_t end, const Scratch& s) const;
  void widen(int64_t n, int64_t from, int64_t low, int64_t high, float* wide, void* scratch) const;
  size_t kernel_scratch(const Stage& stage, int64_t rows) const;

  Stage before_, depthwise_, after_;
  int64_t pitch_ = 0, columns_ = 0;  // channels of a pixel between stages, pixels of a wide row
  int64_t band_ = 0,
          wide_rows_ = 0;          // rows of a band, and of what it reads with what is read no more
  int64_t wide_ = 0, narrow_ = 0;  // floats of the images in scratch
  size_t scratch_ = 0;
};

}  // namespace tracea
