#include "cpu/partition.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/plan.h"
#include "cpu/run_state.h"
#include "plan/failure.h"

namespace tracea {
namespace {
constexpr size_t kWidestElement = 8;  // bytes
}  // namespace

Partition::Partition(std::shared_ptr<const Plan> plan,
                     const std::function<Blob(const std::string&)>& initializer)
    : plan_(std::move(plan)) {
  const size_t n = plan_->buffers.size();
  std::vector<char> used(
      n, 0);  // by a run launch: initializers and blobs that only init launches read are not copied
  for (const LaunchSpec& l : plan_->run)
    for (const OperandSpec& o : l.operands)
      if (o.buffer >= 0) used[size_t(o.buffer)] = 1;

  layout_.offset.assign(n, -1);
  layout_.bytes.assign(n, 0);
  std::vector<Blob> source(n, {nullptr, 0});
  size_t total = 0;
  for (size_t k = 0; k < n; k++) {
    const BufferSpec& b = plan_->buffers[k];
    if (b.kind == BufferKind::kInitializer) source[k] = initializer(b.name);
    if (b.kind == BufferKind::kBlob) source[k] = plan_->pack->blobs()[size_t(b.index)];
    const bool own = b.kind == BufferKind::kConst;
    if (!own && !source[k].data) continue;
    layout_.bytes[k] = own ? b.bytes : int64_t(source[k].bytes);
    if (!own && !used[k]) continue;
    layout_.offset[k] = int64_t(total);
    total += align_up(size_t(layout_.bytes[k]) + kSlack, kAlign);
  }
  layout_.total = total;
  if (total >= kWorthReturning) return_free_memory();  // of what ORT has folded: a lower peak
  constants_ = Memory(total);

  std::vector<const char*> base(n, nullptr);
  for (size_t k = 0; k < n; k++) {
    base[k] = layout_.offset[k] >= 0 ? constants_.data() + layout_.offset[k] : source[k].data;
    if (layout_.offset[k] < 0 || !source[k].bytes) continue;
    memcpy(constants_.data() + layout_.offset[k], source[k].data, source[k].bytes);
    forget_mapped(source[k].data, source[k].bytes);
  }
  run_init(base);
}

Partition::~Partition() = default;

// Packs weights. One thread: sessions of one process often load at the same time, and there is no
// pool to borrow outside a run.
void Partition::run_init(const std::vector<const char*>& base) {
  const std::vector<int64_t> value = plan_->evaluate({});
  Memory scratch;
  std::vector<Memory> aligned;  // by operand
  for (const LaunchSpec& l : plan_->init) {
    aligned.resize(std::max(aligned.size(), l.operands.size()));
    std::vector<void*> operands;
    std::vector<int64_t> ints, before;
    std::vector<Room> rooms;
    for (const OperandSpec& o : l.operands) {
      if (o.buffer < 0) {
        operands.push_back(nullptr);
        rooms.push_back({false, 0}), before.push_back(0);
        continue;
      }
      const int64_t offset = value[size_t(o.offset)];
      if (offset < 0 || offset > layout_.bytes[size_t(o.buffer)])
        throw Failure(std::string("an operand of '") + l.name() + "' starts outside its buffer");
      const char* data = base[size_t(o.buffer)];
      const size_t bytes = size_t(layout_.bytes[size_t(o.buffer)]);
      if (bytes && reinterpret_cast<uintptr_t>(data) % kWidestElement) {  // in a file, anywhere
        Memory& copy = aligned[operands.size()];
        if (copy.size() < bytes) copy = Memory(bytes);
        data = static_cast<const char*>(memcpy(copy.data(), data, bytes));
      }
      operands.push_back(const_cast<char*>(data) + offset);
      rooms.push_back({true, layout_.bytes[size_t(o.buffer)] - offset}), before.push_back(offset);
    }
    for (int e : l.ints) ints.push_back(e < 0 ? 0 : value[size_t(e)]);
    if (!l.own->check(l, ints.data(), rooms.data(), before.data())) continue;
    const FamilyLaunch& family = family_launch(l);
    const Kernel& kernel = *family.kernel;
    int error = 0;
    const Launch launch{operands.data(), ints.data(), l.floats.data(),
                        family.has_program ? &family.program : nullptr, &error};
    const size_t bytes = kernel.scratch ? kernel.scratch(launch, 1) : 0;
    if (scratch.size() < bytes) scratch = Memory(bytes);
    const int64_t tasks = kernel.tasks(launch, 1);
    for (int64_t t = 0; t < tasks; t++) kernel.run(launch, t, tasks, scratch.data());
    for (const OperandSpec& o : l.operands)
      if (o.buffer >= 0 && layout_.offset[size_t(o.buffer)] < 0)
        forget_mapped(base[size_t(o.buffer)], size_t(layout_.bytes[size_t(o.buffer)]));
    if (error) {
      bad_constants_ = std::string("'") + l.name() +
                       "' met an index out of range of its tensor in constants (partition '" +
                       plan_->name + "')";
      return;
    }
  }
}

Partition::Run::Run(Partition& partition) : partition_(partition) {
  {
    const std::lock_guard<std::mutex> lock(partition_.mutex_);
    if (!partition_.idle_.empty()) {
      state_ = std::move(partition_.idle_.back());
      partition_.idle_.pop_back();
    }
  }
  if (!state_) state_ = std::make_unique<RunState>();
}

Partition::Run::~Run() {
  contained(
      [&] {
        const std::lock_guard<std::mutex> lock(partition_.mutex_);
        partition_.idle_.push_back(std::move(state_));
      },
      [](const char*) {});  // without memory to keep it, the next run makes a new one
}

std::vector<InputTensor>& Partition::Run::inputs() { return state_->inputs; }

std::vector<void*>& Partition::Run::outputs() { return state_->outputs; }

const Bound& Partition::Run::bind() {
  if (state_->bound && fits(partition_.plan(), *state_->bound, state_->inputs)) {
    bound_ = state_->bound;
    return *bound_;
  }
  bound_ = partition_.bounds_.get(partition_.plan(), partition_.layout_, state_->inputs);
  // A state that is set up for these shapes saves setting this one up.
  const std::lock_guard<std::mutex> lock(partition_.mutex_);
  for (auto& other : partition_.idle_)
    if (other->bound == bound_) {
      std::swap(other->inputs, state_->inputs);
      std::swap(other, state_);
      break;
    }
  return *bound_;
}

const Bound& Partition::Run::bind(const std::vector<int64_t>& variants) {
  const Plan& plan = partition_.plan();
  auto changed =
      std::make_shared<Bound>(*partition_.bounds_.get(plan, partition_.layout_, state_->inputs));
  size_t end = 0;
  for (size_t l = 0; l < plan.run.size(); l++) {
    end += plan.run[l].ints.size();
    if (variants[l] < 0) continue;
    check_variant(family_launch(plan.run[l]), variants[l]);
    changed->ints[end - 1] = variants[l];
  }
  bound_ = std::move(changed);
  return *bound_;
}

void Partition::Run::execute(const Parallel& parallel) {
  if (!partition_.bad_constants_.empty()) throw Failure(partition_.bad_constants_);
  state_->attach(partition_.plan(), bound_, partition_.constants_.data(), parallel.threads);
  if (partition_.plan().clears) state_->clear_outputs();
  state_->run(parallel);
  finish();
}

std::vector<double> Partition::Run::time(const Parallel& parallel) {
  if (!partition_.bad_constants_.empty()) throw Failure(partition_.bad_constants_);
  state_->attach(partition_.plan(), bound_, partition_.constants_.data(), parallel.threads);
  std::vector<double> found = state_->time(parallel);
  finish();
  return found;
}

std::vector<int64_t> Partition::Run::counted(size_t output) const {
  const TensorSpec& o = partition_.plan().outputs[output];
  std::vector<int64_t> dims = bound_->output_dims[output];
  int64_t count;
  memcpy(&count, state_->arena() + bound_->counted[output].count, sizeof count);
  if (count < 0 || count > dims[size_t(o.axis)])
    throw Failure("output '" + o.name + "' was counted to have " + std::to_string(count) + " of " +
                  std::to_string(dims[size_t(o.axis)]));
  dims[size_t(o.axis)] = count;
  return dims;
}

void Partition::Run::copy_counted(size_t output, const std::vector<int64_t>& dims, void* to) const {
  const size_t axis = size_t(partition_.plan().outputs[output].axis);
  const std::vector<int64_t>& most = bound_->output_dims[output];
  if (!bound_->output_bytes[output] || !dims[axis]) return;
  size_t rows = 1;
  for (size_t d = 0; d < axis; d++) rows *= size_t(dims[d]);
  const size_t pitch = bound_->output_bytes[output] / rows,
               row = pitch / size_t(most[axis]) * size_t(dims[axis]);
  const char* from = state_->arena() + bound_->counted[output].source;
  for (size_t r = 0; r < rows; r++) memcpy(static_cast<char*>(to) + r * row, from + r * pitch, row);
}

void Partition::Run::finish() const {
  const Plan& plan = partition_.plan();
  const int failed = state_->take_failure();
  if (failed >= 0)
    throw Failure(std::string("'") + plan.run[size_t(failed)].name() +
                  "' met an index out of range of its tensor (partition '" + plan.name + "')");
}

}  // namespace tracea
