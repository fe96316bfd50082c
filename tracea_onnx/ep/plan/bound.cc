#include "plan/bound.h"

#include <algorithm>
#include <climits>
#include <numeric>
#include <utility>

#include "plan/dtype.h"
#include "plan/failure.h"
#include "plan/runtime.h"
#include "plan/stats.h"

namespace tracea {
namespace {

int64_t element_bytes(int type) {
  switch (type) {
    case kF32:
    case kI32:
    case kU32: return 4;
    case kF64:
    case kI64:
    case kU64: return 8;
    case kF16:
    case kBF16:
    case kI16:
    case kU16: return 2;
    case kI8:
    case kU8:
    case kBool: return 1;
    default: throw Failure("a tensor of unsupported element type " + std::to_string(type));
  }
}

int64_t tensor_bytes(int type, const std::vector<int64_t>& dims) {
  int64_t n = element_bytes(type);
  for (int64_t d : dims)
    if (__builtin_mul_overflow(n, d, &n)) throw Failure("a tensor overflows 64 bits");
  return n;
}

std::string shape_text(const InputTensor& t) {
  std::string s = "[";
  for (size_t k = 0; k < t.rank; k++) s += (k ? "," : "") + std::to_string(t.dims[k]);
  return s + "]";
}

// Which shapes the run was given: what a caller can change.
std::string inputs_text(const Plan& plan, const std::vector<InputTensor>& inputs) {
  constexpr size_t kMostNamed = 4;
  std::string s;
  for (size_t k = 0; k < inputs.size() && k < kMostNamed; k++)
    s += (k ? ", '" : " (of '") + plan.inputs[k].name + "' " + shape_text(inputs[k]);
  return s + (inputs.size() > kMostNamed ? ", ...)" : inputs.empty() ? "" : ")");
}

std::vector<int64_t> symbol_values(const Plan& plan, const std::vector<InputTensor>& inputs) {
  for (size_t k = 0; k < inputs.size(); k++) {
    const TensorSpec& want = plan.inputs[k];
    if (inputs[k].type != want.type)
      throw Failure("input '" + want.name + "' has element type " + std::to_string(inputs[k].type) +
                    ", the plan needs " + std::to_string(want.type));
    if (inputs[k].rank != size_t(want.rank))
      throw Failure("input '" + want.name + "' has shape " + shape_text(inputs[k]) +
                    ", the plan needs rank " + std::to_string(want.rank));
  }
  std::vector<int64_t> symbols;
  for (const AxisSpec& s : plan.symbols) symbols.push_back(inputs[size_t(s.input)].dims[s.axis]);
  return symbols;
}

}  // namespace

std::vector<int64_t> lay_out(const std::vector<Interval>& intervals, int64_t* total, size_t align) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  std::vector<int64_t> offset(intervals.size(), 0);
  std::vector<size_t> placed, alive;
  *total = 0;
  for (size_t k : order) {
    const Interval& me = intervals[k];
    const int64_t need = int64_t(align_up(size_t(me.bytes) + kSlack, align));
    alive.clear();
    for (size_t o : placed)
      if (intervals[o].first <= me.last && me.first <= intervals[o].last) alive.push_back(o);
    std::sort(alive.begin(), alive.end(),
              [&](size_t a, size_t b) { return offset[a] < offset[b]; });
    int64_t end = 0, best = -1, best_gap = INT64_MAX;
    for (size_t o : alive) {
      const int64_t gap = offset[o] - end;
      if (gap >= need && gap < best_gap) best = end, best_gap = gap;
      end =
          std::max(end, offset[o] + int64_t(align_up(size_t(intervals[o].bytes) + kSlack, align)));
    }
    offset[k] = best >= 0 ? best : end;
    *total = std::max(*total, offset[k] + need);
    placed.push_back(k);
  }
  return offset;
}

std::shared_ptr<const Bound> bind_plan(const Plan& plan, const ConstantLayout& constants,
                                       const std::vector<InputTensor>& inputs) {
  auto bound = std::make_shared<Bound>();
  const std::vector<int64_t> symbols = symbol_values(plan, inputs);
  const std::vector<int64_t> value = plan.evaluate(symbols);
  for (const AxisSpec& c : plan.checks) {
    const InputTensor& t = inputs[size_t(c.input)];
    if (t.dims[c.axis] != value[size_t(c.expr)])
      throw Failure("input '" + plan.inputs[size_t(c.input)].name + "' has shape " + shape_text(t) +
                    ", but its dimension " + std::to_string(c.axis) + " must be " +
                    std::to_string(value[size_t(c.expr)]));
  }
  for (const RequireSpec& r : plan.requirements) {
    const int64_t a = value[size_t(r.a)], b = value[size_t(r.b)];
    if (r.equal && a != b)
      throw Failure(r.what + " differ: " + std::to_string(a) + " and " + std::to_string(b) +
                    inputs_text(plan, inputs));
    if (!r.equal && a < b)
      throw Failure(r.what + " is " + std::to_string(a) + ", less than " + std::to_string(b) +
                    inputs_text(plan, inputs));
  }
  for (const InputTensor& t : inputs) {
    bound->key.insert(bound->key.end(), t.dims, t.dims + t.rank);
    bound->input_bytes.push_back(size_t(tensor_bytes(t.type, {t.dims, t.dims + t.rank})));
  }
  for (const TensorSpec& o : plan.outputs) {
    std::vector<int64_t> dims;
    for (int e : o.dims) {
      dims.push_back(value[size_t(e)]);
      if (dims.back() < 0) throw Failure("output '" + o.name + "' would have a negative dimension");
    }
    bound->output_bytes.push_back(size_t(tensor_bytes(o.type, dims)));
    bound->output_dims.push_back(std::move(dims));
  }

  // Sizes of all buffers, for the arena and for the check that every operand starts inside its
  // buffer.
  const size_t n = plan.buffers.size();
  std::vector<int64_t> bytes(n);
  for (size_t k = 0; k < n; k++) {
    const BufferSpec& b = plan.buffers[k];
    switch (b.kind) {
      case BufferKind::kInput: bytes[k] = int64_t(bound->input_bytes[size_t(b.index)]); break;
      case BufferKind::kOutput: bytes[k] = int64_t(bound->output_bytes[size_t(b.index)]); break;
      case BufferKind::kArena: bytes[k] = value[size_t(b.bytes)]; break;
      default: bytes[k] = constants.bytes[k];
    }
    if (bytes[k] < 0 || bytes[k] > INT64_MAX / 4) throw Failure("a buffer of impossible size");
  }

  std::vector<Interval> intervals;
  std::vector<int> interval_of(n, -1);
  for (size_t l = 0; l < plan.run.size(); l++)
    for (const OperandSpec& o : plan.run[l].operands) {
      if (o.buffer < 0 || plan.buffers[size_t(o.buffer)].kind != BufferKind::kArena) continue;
      int& i = interval_of[size_t(o.buffer)];
      if (i < 0)
        i = int(intervals.size()), intervals.push_back({bytes[size_t(o.buffer)], int(l), int(l)});
      intervals[size_t(i)].last = int(l);
    }
  for (const Together& t : plan.together)  // all of them read and write until the last has run
    for (int l : t.launches)
      for (const OperandSpec& o : plan.run[size_t(l)].operands) {
        const int i = o.buffer < 0 ? -1 : interval_of[size_t(o.buffer)];
        if (i < 0) continue;
        Interval& whole = intervals[size_t(i)];
        whole.first = std::min(whole.first, t.launches.front());
        whole.last = std::max(whole.last, t.launches.back());
      }
  for (size_t k = 0; k < plan.outputs.size(); k++) {
    const TensorSpec& o = plan.outputs[k];
    if (o.axis < 0) continue;
    for (const auto& [buffer, least] :
         {std::pair(o.source, int64_t(bound->output_bytes[k])), std::pair(o.count, int64_t(8))}) {
      const int i = interval_of[size_t(buffer)];
      if (i < 0 || bytes[size_t(buffer)] < least)
        throw Failure("nothing writes all of the counted output '" + o.name + "'");
      intervals[size_t(i)].last = int(plan.run.size());  // it is copied behind the last launch
    }
  }
  int64_t arena = 0;
  const std::vector<int64_t> offsets = lay_out(intervals, &arena, plan.runtime->align());
  bound->arena_bytes = size_t(arena);
  for (const TensorSpec& o : plan.outputs)
    bound->counted.push_back(o.axis < 0
                                 ? CountedPlace{}
                                 : CountedPlace{offsets[size_t(interval_of[size_t(o.source)])],
                                                offsets[size_t(interval_of[size_t(o.count)])]});

  for (const ExtentSpec& e : plan.extents) {
    const int64_t low = value[size_t(e.low)], high = value[size_t(e.high)],
                  size = bytes[size_t(e.buffer)];
    if (low < high && (low < 0 || high > size))
      throw Failure("'" + e.what + "' would touch bytes " + std::to_string(low) + " to " +
                    std::to_string(high) + " of a buffer of " + std::to_string(size) +
                    inputs_text(plan, inputs));
  }

  std::vector<Room> rooms;
  std::vector<int64_t> before;
  for (const LaunchSpec& l : plan.run) {
    rooms.clear(), before.clear();
    for (const OperandSpec& o : l.operands) {
      if (o.buffer < 0) {
        bound->operands.push_back({Base::kAbsent, 0, 0});
        rooms.push_back({false, 0}), before.push_back(0);
        continue;
      }
      const size_t k = size_t(o.buffer);
      const int64_t offset = bytes[k]
                                 ? value[size_t(o.offset)]
                                 : 0;  // what has no elements has no place where some of them begin
      if (offset < 0 || offset > bytes[k])
        throw Failure(std::string("an operand of '") + l.name() + "' starts outside its buffer");
      switch (plan.buffers[k].kind) {
        case BufferKind::kInput:
          bound->operands.push_back({Base::kInput, plan.buffers[k].index, offset});
          break;
        case BufferKind::kOutput:
          if (bound->is_counted(size_t(plan.buffers[k].index)))
            throw Failure(std::string("'") + l.name() + "' writes a counted output directly");
          bound->operands.push_back({Base::kOutput, plan.buffers[k].index, offset});
          break;
        case BufferKind::kArena:
          bound->operands.push_back({Base::kArena, 0, offsets[size_t(interval_of[k])] + offset});
          break;
        default: bound->operands.push_back({Base::kConst, 0, constants.offset[k] + offset});
      }
      rooms.push_back({true, bytes[k] - offset}), before.push_back(offset);
    }
    const size_t first = bound->ints.size();
    for (int e : l.ints) bound->ints.push_back(e < 0 ? 0 : value[size_t(e)]);
    bound->needed.push_back(
        l.own->check(l, bound->ints.data() + first, rooms.data(), before.data()));
  }
  return bound;
}

bool fits(const Plan& plan, const Bound& bound, const std::vector<InputTensor>& inputs) {
  size_t at = 0;
  for (size_t k = 0; k < inputs.size(); k++) {
    const InputTensor& t = inputs[k];
    if (t.type != plan.inputs[k].type || t.rank != size_t(plan.inputs[k].rank) ||
        !std::equal(t.dims, t.dims + t.rank, bound.key.begin() + long(at)))
      return false;
    at += t.rank;
  }
  return true;
}

std::shared_ptr<const Bound> BoundPlans::get(const Plan& plan, const ConstantLayout& constants,
                                             const std::vector<InputTensor>& inputs) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t k = 0; k < known_.size(); k++)
      if (fits(plan, *known_[k], inputs)) {
        std::rotate(known_.begin(), known_.begin() + long(k), known_.begin() + long(k) + 1);
        return known_.front();
      }
  }
  auto made =
      bind_plan(plan, constants, inputs);  // outside the lock: another run need not wait for it
  const std::lock_guard<std::mutex> lock(mutex_);
  stats.bound_plans++;
  known_.insert(known_.begin(), made);
  if (known_.size() > kMost) known_.pop_back();
  return made;
}

DeviceConstants lay_out_constants(const Plan& plan, const Initializers& initializers,
                                  size_t align) {
  DeviceConstants out;
  const size_t n = plan.buffers.size();
  std::vector<char> in_run(n, 0), in_init(n, 0);
  for (const LaunchSpec& l : plan.run)
    for (const OperandSpec& o : l.operands) in_run[size_t(o.buffer)] = 1;
  for (const LaunchSpec& l : plan.init)
    for (const OperandSpec& o : l.operands) in_init[size_t(o.buffer)] = 1;
  out.value = plan.evaluate({});

  out.stays.offset.assign(n, -1);
  out.stays.bytes.assign(n, 0);
  out.source.assign(n, {nullptr, 0});
  out.passing.assign(n, 0);
  size_t total = 0;
  for (size_t k = 0; k < n; k++) {
    const BufferSpec& b = plan.buffers[k];
    if (!in_run[k] && !in_init[k]) continue;
    switch (b.kind) {
      case BufferKind::kInput:
      case BufferKind::kOutput: continue;
      case BufferKind::kConst: out.stays.bytes[k] = b.bytes; break;
      case BufferKind::kInitializer: out.source[k] = initializers(b.name); break;
      case BufferKind::kBlob: out.source[k] = plan.pack->blobs()[size_t(b.index)]; break;
      case BufferKind::kArena:
        if (!in_init[k]) continue;
        out.stays.bytes[k] = out.value[size_t(b.bytes)];
        if (!plan.exprs[size_t(b.bytes)].constant || out.stays.bytes[k] < 0)
          throw Failure("scratch of an init launch has no fixed size");
        break;
    }
    if (out.source[k].data) out.stays.bytes[k] = int64_t(out.source[k].bytes);
    if (out.stays.bytes[k] > INT64_MAX / 4 - int64_t(total) - int64_t(out.passing_total))
      throw Failure("constants and scratch of " + std::to_string(out.stays.bytes[k]) +
                    " bytes and more: no device has as much memory; make the pack again");
    const size_t room = align_up(size_t(out.stays.bytes[k]) + kSlack, align);
    if (b.kind == BufferKind::kConst || (in_run[k] && b.kind != BufferKind::kArena))
      out.stays.offset[k] = int64_t(total), total += room;
    else
      out.passing[k] = out.passing_total, out.passing_total += room;
  }
  out.stays.total = total;
  return out;
}

}  // namespace tracea
