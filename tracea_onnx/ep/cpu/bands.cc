#include "cpu/bands.h"

#include <algorithm>
#include <cstring>

namespace tracea {
namespace {

using namespace fam::conv2d;  // the parameters of conv2d_dw begin alike

// Floats between stages: of a band, which stay in the second cache beside weights, input and
// output; and with rows that are read no more, behind which the next ones are written.
constexpr int64_t kBandFloats = 65536, kScratchFloats = 98304;
// Floats between stages of whole images from which on they come back from beyond that cache, and
// most floats of weights, which each band reads.
constexpr int64_t kWorthFloats = 458752, kMostWeights = 65536;
// Sizes of windows and strides of them.
constexpr int64_t kMostTaps = 32, kMostStride = 8;
// Multiply-adds that are worth waking a thread for, as of the kernels' own tasks; rows of a task,
// of which the first ones' windows reach rows that the task before computes, too.
constexpr double kTaskMacs = 1 << 18;
constexpr int64_t kTaskRows = 16;

int64_t up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

bool is(const LaunchSpec& l, const char* family) { return !strcmp(l.name(), family); }

// Whether a convolution's rows can be computed some at a time, as one of several stages.
bool simple(const LaunchSpec& l, bool last) {
  return !family_launch(l).has_program && (last || l.operands[res].buffer < 0);
}

}  // namespace

void find_bands(Plan& plan) {
  const int n = int(plan.run.size());
  std::vector<int> touched(plan.buffers.size(), 0);  // by operands that are not borders
  std::vector<std::vector<int>> borders(plan.buffers.size());
  for (int l = 0; l < n; l++) {
    const LaunchSpec& spec = plan.run[size_t(l)];
    const bool border = is(spec, "zero_border");
    for (const OperandSpec& o : spec.operands)
      if (o.buffer >= 0 && border)
        borders[size_t(o.buffer)].push_back(l);
      else if (o.buffer >= 0)
        touched[size_t(o.buffer)]++;
  }
  for (const TensorSpec& o : plan.outputs)
    for (int b : {o.source, o.count})
      if (b >= 0) touched[size_t(b)]++;
  // The launch next to `l` that is no border, forwards or backwards; -1 for none.
  const auto beside = [&](int l, int step) {
    for (l += step; l >= 0 && l < n; l += step)
      if (!is(plan.run[size_t(l)], "zero_border")) return l;
    return -1;
  };
  // Whether nothing but these two launches touches what one writes and the other reads.
  const auto private_between = [&](int writer, int reader) {
    const OperandSpec &to = plan.run[size_t(writer)].operands[y],
                      &from = plan.run[size_t(reader)].operands[x];
    return to.buffer == from.buffer && to.offset == from.offset &&
           plan.buffers[size_t(to.buffer)].kind == BufferKind::kArena &&
           touched[size_t(to.buffer)] == 2;
  };
  int taken = -1;
  for (int l = 0; l < n; l++) {
    if (!is(plan.run[size_t(l)], "conv2d_dw")) continue;
    Together found;
    const int first = beside(l, -1), last = beside(l, 1);
    const auto joins = [&](int other, bool end) {
      return other > taken && is(plan.run[size_t(other)], "conv2d") &&
             simple(plan.run[size_t(other)], end);
    };
    const auto skip = [&](int writer) {
      const auto& b = borders[size_t(plan.run[size_t(writer)].operands[y].buffer)];
      found.idle.insert(found.idle.end(), b.begin(), b.end());
    };
    const bool has_last = joins(last, true) && private_between(l, last);
    if (!simple(plan.run[size_t(l)], !has_last)) continue;
    if (joins(first, false) && private_between(first, l)) {
      found.launches.push_back(first);
      skip(first);
    }
    found.launches.push_back(l);
    if (has_last) {
      found.launches.push_back(last);
      skip(l);
    }
    if (found.launches.size() < 2) continue;
    taken = found.launches.back();
    plan.together.push_back(std::move(found));
  }
}

double Bands::Stage::macs() const {
  if (!kernel) return 0;
  double p = double(at(IC)) / double(at(G));
  for (int k : {N, OH, OW, OC, KH, KW}) p *= double(at(k));
  return p;
}

std::optional<Bands> Bands::make(const Plan& plan, const Together& which,
                                 const std::vector<Launch>& launches,
                                 const std::vector<const Kernel*>& kernels) {
  Bands b;
  for (int l : which.launches) {
    const LaunchSpec& spec = plan.run[size_t(l)];
    Stage& s = is(spec, "conv2d_dw") ? b.depthwise_ : b.depthwise_ ? b.after_ : b.before_;
    s = {launches[size_t(l)], kernels[size_t(l)], int(spec.ints.size())};
  }
  const Stage &dw = b.depthwise_, &first = b.before_, &last = b.after_;
  if (!dw) return std::nullopt;
  const auto same = [](const Stage& from, const Stage& to) {  // what one wrote, the other reads
    for (const auto& [p, q] :
         {std::pair(N, N), {OC, IC}, {OH, IH}, {OW, IW}, {y_cs, x_cs}, {y_rs, x_rs}, {y_ns, x_ns}})
      if (from.at(p) != to.at(q)) return false;
    return true;
  };
  for (int k : {N, IC, IH, IW, OH, OW})
    if (dw.at(k) <= 0) return std::nullopt;
  for (int k : {0, 1}) {
    const int64_t taps = dw.at(KH + k), stride = dw.at(SH + k), pad = dw.at(PT + k);
    if (dw.at(DH + k) != 1 || taps > kMostTaps || stride > kMostStride || pad < 0 || pad >= taps ||
        (dw.at(OH + k) - 1) * stride + taps > dw.at(IH + k) + 2 * taps)
      return std::nullopt;
  }
  if (dw.at(IC) != dw.at(OC) || dw.at(G) != dw.at(IC)) return std::nullopt;
  if (first && (!same(first, dw) || first.at(IC) <= 0 || first.at(G) <= 0)) return std::nullopt;
  if (last) {
    if (!same(dw, last) || last.at(OC) <= 0 || last.at(G) != 1 || last.at(PT) || last.at(PL))
      return std::nullopt;
    for (int k : {KH, KW, SH, SW})
      if (last.at(k) != 1) return std::nullopt;
    if (last.at(OH) != last.at(IH) || last.at(OW) != last.at(IW)) return std::nullopt;
  }
  b.pitch_ = up(dw.at(IC), 16);
  b.columns_ = (dw.at(OW) - 1) * dw.at(SW) + dw.at(KW);
  if (double(b.columns_ + dw.at(OW)) * double(b.pitch_) > double(kScratchFloats))
    return std::nullopt;
  const int64_t wide = first ? b.columns_ * b.pitch_ : 0, narrow = last ? dw.at(OW) * b.pitch_ : 0;
  const int64_t between = wide * dw.at(IH) + narrow * dw.at(OH);
  double weights = 0;
  for (const Stage* s : {&first, &last})
    if (*s) {
      const int64_t channels = s->at(IC) / s->at(G);
      weights += double(s->at(OC)) * double(channels) * double(s->at(KH)) * double(s->at(KW));
    }
  if (between < kWorthFloats || weights > double(kMostWeights)) return std::nullopt;
  const auto floats = [&](int64_t rows) {
    return wide * ((rows - 1) * dw.at(SH) + dw.at(KH)) + narrow * rows;
  };
  int64_t most = 1;
  if (floats(most) > kScratchFloats) return std::nullopt;
  while (most < dw.at(OH) && floats(most + 1) <= kBandFloats) most++;
  const int64_t bands = (dw.at(OH) + most - 1) / most;
  b.band_ = (dw.at(OH) + bands - 1) / bands;
  const int64_t needed = (b.band_ - 1) * dw.at(SH) + dw.at(KH);
  if (first)
    b.wide_rows_ = std::max(needed, std::min((dw.at(OH) - 1) * dw.at(SH) + dw.at(KH),
                                             (kScratchFloats - narrow * b.band_) / wide));
  b.wide_ = up(wide * b.wide_rows_, 16) + 64;
  b.narrow_ = up(narrow * b.band_, 16) + 64;
  size_t rest = b.kernel_scratch(dw, b.band_);
  if (first) rest = std::max(rest, b.kernel_scratch(first, (b.band_ - 1) * dw.at(SH) + dw.at(KH)));
  if (last) rest = std::max(rest, b.kernel_scratch(last, b.band_));
  b.scratch_ = sizeof(float) * size_t(b.wide_ + b.narrow_) + rest;
  return b;
}

size_t Bands::kernel_scratch(const Stage& stage, int64_t rows) const {
  if (!stage.kernel->scratch) return 0;
  int64_t ints[kInts + 1];
  std::copy(stage.launch.i, stage.launch.i + stage.integers, ints);
  ints[N] = 1, ints[OH] = rows;
  if (&stage == &before_) ints[OW] = std::min(ints[OW], columns_ - depthwise_.at(PL));
  ints[y_rs] = ints[x_rs] = -1;  // whichever way its pixels are walked
  Launch some = stage.launch;
  some.i = ints;
  return stage.kernel->scratch(some, 1);
}

int64_t Bands::tasks(int threads) const {
  if (threads <= 1) return 1;
  const int64_t rows = depthwise_.at(N) * depthwise_.at(OH);
  double macs = 0;
  for (double p : work()) macs += p;
  const int64_t worth = std::max<int64_t>(1, int64_t(std::min(1e9, macs / kTaskMacs)));
  const int64_t want = std::clamp<int64_t>(rows / kTaskRows / threads, 1, 4) * threads;
  return std::min({rows, want, worth});
}

std::vector<double> Bands::work() const {
  std::vector<double> found;
  for (const Stage* s : {&before_, &depthwise_, &after_})
    if (*s) found.push_back(s->macs());
  return found;
}

void Bands::run(int64_t task, int64_t tasks, void* scratch) const {
  float* wide = static_cast<float*>(scratch);
  const Scratch s{wide, wide + wide_, wide + wide_ + narrow_};
  const int64_t height = depthwise_.at(OH), rows = depthwise_.at(N) * height;
  const auto begin = [&](int64_t t) { return rows / tasks * t + std::min(t, rows % tasks); };
  for (int64_t r = begin(task), end = begin(task + 1), next; r < end; r = next) {
    next = std::min(end, (r / height + 1) * height);
    rows_of_image(r / height, r % height, r % height + next - r, s);
  }
}

void Bands::rows_of_image(int64_t n, int64_t first, int64_t end, const Scratch& s) const {
  const Stage& dw = depthwise_;
  const int64_t stride = dw.at(SH), taps = dw.at(KH), row = columns_ * pitch_;
  const int64_t left = dw.at(PL), right = columns_ - left - std::min(dw.at(IW), columns_ - left);
  for (int64_t r = 0; before_ && r < wide_rows_; r++) {  // columns of padding stay zeros
    memset(s.wide + r * row, 0, sizeof(float) * size_t(left * pitch_));
    memset(s.wide + (r + 1) * row - right * pitch_, 0, sizeof(float) * size_t(right * pitch_));
  }
  // Rows [low, high) of the image are in s.wide, behind `gone` rows that no window reads any more.
  int64_t low = 0, high = 0, gone = 0;
  for (int64_t o = first, rows; o < end; o += rows) {
    rows = std::min(band_, end - o);
    Image x{};
    if (before_) {
      const int64_t from = o * stride - dw.at(PT), to = from + (rows - 1) * stride + taps;
      const int64_t kept = o > first ? std::max(high, from) : from;
      gone += o > first ? from - low : 0;
      if (gone + to - from > wide_rows_) {
        memmove(s.wide, s.wide + gone * row, sizeof(float) * size_t((kept - from) * row));
        gone = 0;
      }
      float* wide = s.wide + gone * row;
      widen(n, from, kept, to, wide, s.rest);
      low = from, high = to;
      x = {wide, pitch_, row};
    } else {
      x = image(dw, fam::conv2d::x, x_cs, n, o * stride);
    }
    const Image narrow{s.narrow, pitch_, dw.at(OW) * pitch_};
    const Image y = after_ ? narrow : image(dw, fam::conv2d::y, y_cs, n, o);
    part(dw, x, y, n, o, rows, !before_, s.rest);
    if (after_)
      part(after_, y, image(after_, fam::conv2d::y, y_cs, n, o), n, o, rows, true, s.rest);
  }
}

// Rows [low, high) of the first convolution into `wide`, whose first row is row `from`.
void Bands::widen(int64_t n, int64_t from, int64_t low, int64_t high, float* wide,
                  void* scratch) const {
  const int64_t row = columns_ * pitch_, begin = std::max<int64_t>(low, 0),
                end = std::min(high, depthwise_.at(IH));
  for (int64_t r = low; r < high; r++)
    if (r < 0 || r >= depthwise_.at(IH))
      memset(wide + (r - from) * row, 0, sizeof(float) * size_t(row));
  if (begin >= end) return;
  const Image to{wide + (begin - from) * row + depthwise_.at(PL) * pitch_, pitch_, row};
  part(before_, image(before_, x, x_cs, n, begin * before_.at(SH)), to, n, begin, end - begin, true,
       scratch);
}

Bands::Image Bands::image(const Stage& stage, int operand, int pitches, int64_t n, int64_t row) {
  const int64_t rs = stage.at(pitches + 1), ns = stage.at(pitches + 2);
  return {static_cast<float*>(stage.launch.buf[operand]) + n * ns + row * rs, stage.at(pitches),
          rs};
}

void Bands::part(const Stage& stage, const Image& from, const Image& to, int64_t n, int64_t row,
                 int64_t rows, bool padded, void* scratch) const {
  int64_t ints[kInts + 1];
  void* buf[kOperands];
  std::copy(stage.launch.i, stage.launch.i + stage.integers, ints);
  std::copy(stage.launch.buf, stage.launch.buf + kOperands, buf);
  ints[N] = 1, ints[OH] = rows;
  ints[IH] = (rows - 1) * stage.at(SH) + stage.at(KH);
  if (!padded) ints[PT] = ints[PL] = 0, ints[IW] = columns_;
  if (&stage == &before_) ints[OW] = std::min(ints[OW], columns_ - depthwise_.at(PL));
  ints[x_cs] = from.cs, ints[x_rs] = from.rs, ints[x_ns] = ints[IH] * from.rs;
  ints[y_cs] = to.cs, ints[y_rs] = to.rs, ints[y_ns] = rows * to.rs;
  buf[x] = from.at, buf[y] = to.at;
  if (buf[res])
    buf[res] = static_cast<float*>(buf[res]) + n * stage.at(r_ns) + row * stage.at(r_rs);
  stage.kernel->run({buf, ints, stage.launch.f, stage.launch.prog, stage.launch.error}, 0, 1,
                    scratch);
}

}  // namespace tracea
