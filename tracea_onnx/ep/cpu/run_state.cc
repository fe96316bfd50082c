#include "cpu/run_state.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include "cpu/plan.h"
#include "cpu/clock.h"
#include "cpu/spin.h"
#include "plan/failure.h"

namespace tracea {
namespace {

// Of a launch: it runs by itself, or others compute what it would.
constexpr int kAlone = -1, kIdle = -2;

alignas(kAlign) char empty_tensor[kAlign + kSlack];  // stands for the data of a tensor without
                                                     // elements: null means "absent" to a kernel

}  // namespace

void RunState::attach(const Plan& plan, const std::shared_ptr<const Bound>& next, char* constants,
                      int threads) {
  const bool fresh = bound != next || threads_ != threads;
  const struct Undo {  // what was set up in part must not pass for whole in a later run
    RunState& state;
    const int before;
    ~Undo() {
      if (std::uncaught_exceptions() > before) state.bound = nullptr;
    }
  } undo{*this, std::uncaught_exceptions()};
  if (fresh) {
    bound = next;
    threads_ = threads;
    if (arena_.size() < bound->arena_bytes || !arena_.data()) arena_ = Memory(bound->arena_bytes);
    operands_.assign(bound->operands.size(), nullptr);
    patches_.clear();
    for (size_t k = 0; k < operands_.size(); k++) {
      const Place& p = bound->operands[k];
      switch (p.base) {
        case Base::kAbsent: break;
        case Base::kArena: operands_[k] = arena_.data() + p.offset; break;
        case Base::kConst: operands_[k] = constants + p.offset; break;
        default: patches_.push_back({k, p.base, p.index, p.offset});
      }
    }
  }
  for (const Patch& p : patches_) {
    // A kernel's operands are not const: which of them it writes is the family's convention.
    char* base = p.base == Base::kInput
                     ? static_cast<char*>(const_cast<void*>(inputs[size_t(p.index)].data))
                     : static_cast<char*>(outputs[size_t(p.index)]);
    operands_[p.operand] = base ? base + p.offset : empty_tensor;
  }
  if (fresh) prepare(plan);
}

void RunState::prepare(const Plan& plan) {
  const size_t n = plan.run.size();
  errors_.assign(n, 0);
  launches_.clear();
  kernels_.clear();
  phases_.clear();
  steps_.clear();
  scratch_each_ = words_bytes_ = 0;
  parallel_ = false;
  std::vector<size_t> words_at(n, 0);
  size_t operand = 0, integer = 0, alone = 0;
  int64_t before = 0;
  for (size_t l = 0; l < n; l++) {
    const LaunchSpec& spec = plan.run[l];
    const FamilyLaunch& family = family_launch(spec);
    launches_.push_back({operands_.data() + operand, bound->ints.data() + integer,
                         spec.floats.data(), family.has_program ? &family.program : nullptr,
                         &errors_[l]});
    kernels_.push_back(family.kernel);
    operand += spec.operands.size();
    integer += spec.ints.size();
  }
  std::vector<int> joined(n, kAlone);
  join(plan, joined);
  for (size_t l = 0; l < n; l++) {
    if (joined[l] == kIdle) continue;
    const Bands* bands = joined[l] == kAlone ? nullptr : &bands_[size_t(joined[l])];
    const Kernel& kernel = *kernels_[l];
    const int64_t tasks = bands              ? bands->tasks(threads_)
                          : bound->needed[l] ? kernel.tasks(launches_[l], threads_)
                                             : 0;
    if (tasks <= 0) continue;
    const size_t scratch = bands            ? bands->scratch()
                           : kernel.scratch ? kernel.scratch(launches_[l], threads_)
                                            : 0;
    size_t& most = tasks == 1 ? alone : scratch_each_;
    most = std::max(most, align_up(scratch, kAlign));
    words_at[l] = words_bytes_;
    if (kernel.words)
      words_bytes_ +=
          align_up(size_t(kernel.words(launches_[l], threads_)) * sizeof(int32_t), kAlign);
    parallel_ |= tasks > 1;
    steps_.push_back({int(l), joined[l]});
    const int end = int(steps_.size());
    // A chain of one-task launches stays on one thread: handing it over would cost more than it
    // does.
    if (tasks == 1 && !phases_.empty() && phases_.back().tasks == 1) {
      phases_.back().last = end;
      continue;
    }
    phases_.push_back({end - 1, end, tasks, before, before + tasks});
    before += tasks;
  }
  const size_t scratch = std::max(scratch_each_ * size_t(threads_), alone);
  if (scratch_.size() < scratch) scratch_ = Memory(scratch);
  if (words_.size() < words_bytes_) words_ = Memory(words_bytes_);
  for (size_t l = 0; words_bytes_ && l < n; l++)
    launches_[l].words = reinterpret_cast<int32_t*>(words_.data() + words_at[l]);
}

void RunState::clear_outputs() {
  for (size_t k = 0; k < outputs.size(); k++)
    if (!bound->is_counted(k) && bound->output_bytes[k])
      memset(outputs[k], 0, bound->output_bytes[k]);
}

void RunState::clear_words() {
  if (words_bytes_) memset(words_.data(), 0, words_bytes_);
}

void RunState::join(const Plan& plan, std::vector<int>& joined) {
  bands_.clear();
  banded_.clear();
  for (const Together& t : plan.together) {
    bool all = true;
    for (int l : t.launches) all &= bound->needed[size_t(l)] != 0;
    std::optional<Bands> made;
    if (all) made = Bands::make(plan, t, launches_, kernels_);
    if (!made) continue;
    for (int l : t.launches) joined[size_t(l)] = kIdle;
    for (int l : t.idle) joined[size_t(l)] = kIdle;
    joined[size_t(t.launches.back())] = int(bands_.size());
    bands_.push_back(*made);
    banded_.push_back(t.launches);
  }
  stats.bands += long(bands_.size());
}

void RunState::execute(const Phase& phase, int64_t task, void* scratch) const {
  for (int s = phase.first; s < phase.last; s++) {
    const Step& step = steps_[size_t(s)];
    const size_t l = size_t(step.launch);
    if (step.bands >= 0)
      bands_[size_t(step.bands)].run(task, phase.tasks, scratch);
    else
      kernels_[l]->run(launches_[l], task, phase.tasks, scratch);
  }
}

void RunState::work(size_t worker) {
  char* scratch = scratch_.data() ? scratch_.data() + worker * scratch_each_ : nullptr;
  size_t p = 0;
  for (;;) {
    const int64_t t = ticket_.fetch_add(1, std::memory_order_relaxed);
    while (p < phases_.size() && t >= phases_[p].end) p++;
    if (p == phases_.size()) return;
    const Phase& phase = phases_[p];
    // Every task of an earlier phase has a thread that is running it, so this wait ends whatever
    // the other threads of the pool do.
    for (int spins = 0; done_.load(std::memory_order_acquire) < phase.before; spins++) spin(spins);
    execute(phase, t - phase.before, phase.tasks == 1 ? scratch_.data() : scratch);
    done_.fetch_add(1, std::memory_order_acq_rel);
  }
}

void RunState::run(const Parallel& parallel) {
  if (threads_ == 1 || !parallel_) {
    for (const Phase& phase : phases_)
      for (int64_t task = 0; task < phase.tasks; task++) execute(phase, task, scratch_.data());
    return;
  }
  clear_words();
  ticket_.store(0, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  parallel.run(parallel.self,
               Work([](void* self, size_t worker) { static_cast<RunState*>(self)->work(worker); }),
               size_t(threads_), this);
}

std::vector<double> RunState::time(const Parallel& parallel) {
  std::vector<double> found(launches_.size(), 0.0);
  for (const Phase& phase : phases_)
    for (int s = phase.first; s < phase.last; s++) {
      const Phase alone{s, s + 1, phase.tasks, 0, phase.tasks};
      const double start = seconds(threads_ == 1);
      share(alone, parallel);
      const double us = 1e6 * (seconds(threads_ == 1) - start);
      const Step& step = steps_[size_t(s)];
      if (step.bands < 0) {
        found[size_t(step.launch)] = us;
        continue;
      }
      const std::vector<double> work = bands_[size_t(step.bands)].work();
      const double whole = std::accumulate(work.begin(), work.end(), 0.0);
      for (size_t k = 0; k < work.size(); k++)
        found[size_t(banded_[size_t(step.bands)][k])] = us * work[k] / whole;
    }
  return found;
}

void RunState::share(const Phase& phase, const Parallel& parallel) {
  if (threads_ == 1 || phase.tasks == 1) {
    for (int64_t task = 0; task < phase.tasks; task++) execute(phase, task, scratch_.data());
    return;
  }
  clear_words();
  struct Shared {
    const RunState& state;
    const Phase& phase;
    std::atomic<int64_t> next{0};
  } shared{*this, phase};
  parallel.run(parallel.self, Work([](void* self, size_t worker) {
                 Shared& all = *static_cast<Shared*>(self);
                 char* scratch = all.state.scratch_.data()
                                     ? all.state.scratch_.data() + worker * all.state.scratch_each_
                                     : nullptr;
                 for (int64_t t; (t = all.next.fetch_add(1)) < all.phase.tasks;)
                   all.state.execute(all.phase, t, scratch);
               }),
               size_t(threads_), &shared);
}

int RunState::take_failure() {
  for (size_t k = 0; k < errors_.size(); k++)
    if (errors_[k]) {
      std::fill(errors_.begin(), errors_.end(), 0);
      return int(k);
    }
  return -1;
}

}  // namespace tracea
