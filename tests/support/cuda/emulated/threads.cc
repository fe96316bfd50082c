#include "threads.h"
#include "device.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "fibers.h"

Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {
namespace {
constexpr u32 WINDOW = 1 << 18, FIRST = 1024, STACK = 1 << 18, GUARD = 1 << 12;
constexpr u32 BEHIND = 256;  // bytes behind dynamic shared memory that nothing may write
constexpr int RANK_BIT = 24;

struct Block;
struct Copy {
  char* to;
  const void* from;
  u32 bytes, read;
};
typedef std::vector<std::function<void()>> Group;
struct Fiber {
  void* place;  // where it goes on
  Block* block;
  u32 thread;
  const char* waits;  // what for; null: it runs or may run
  const void* key;
  bool ended;
  u32 cluster_phase;
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // of copies: how many each has
  size_t grouped;              // copies in these
  std::vector<Group> stores;   // groups of bulk stores; the last one is not committed
};
struct Barrier {
  u32 arrived, expected, votes, result;
};
struct Meeting {
  const char* what;
  Together of;
  u32 mask, arrived;
  void* lanes[32];
};
struct Block {
  Dim3 index;
  u32 rank, live;
  Fiber* fibers;
  char* memory;  // the window
  Barrier barriers[16];
  std::vector<Meeting> meetings[32];
};

void (*kernel)(void**);
void** arguments;
std::vector<char*> stacks, windows;  // kept for later launches
std::vector<Fiber> fibers;
std::vector<Block> blocks;
std::vector<Fiber*> ready;  // a ring
size_t first_ready, count_ready;
Fiber* current;
void* host;  // where emulate() goes on
char message[1024];
bool failed;
Group work;  // of the device's own engines, from first_work on
size_t first_work;
u32 dynamic_bytes, dynamic_at, live, cluster_arrived, cluster_phase;

void make_ready(Fiber* f) {
  f->waits = nullptr;
  ready[(first_ready + count_ready++) % ready.size()] = f;
}
void enter(Fiber* f) {
  current = f;
  threadIdx.x = f->thread;
  blockIdx = f->block->index;
}
[[noreturn]] void end_launch() {
  void* nowhere;
  tracea_switch_stack(&nowhere, host);
  __builtin_unreachable();
}
// What all threads that have not ended wait for, those alike together.
[[noreturn]] void report_deadlock() {
  char text[800] = "";
  int used = 0;
  for (size_t k = 0, end; k < fibers.size() && used < 600; k = end) {
    const Fiber& f = fibers[k];
    for (end = k + 1; end < fibers.size(); end++) {
      const Fiber& next = fibers[end];
      if (next.block != f.block || next.ended != f.ended || next.waits != f.waits ||
          next.key != f.key)
        break;
    }
    if (f.ended) continue;
    used += snprintf(text + used, sizeof text - size_t(used),
                     "%sthreads %u to %u of block %u wait for %s", used ? "; " : "", f.thread,
                     fibers[end - 1].thread, f.block->index.x, f.waits);
    const size_t at = size_t((const char*)f.key - f.block->memory);
    if (at < WINDOW) used += snprintf(text + used, sizeof text - size_t(used), " at %x", u32(at));
  }
  current = nullptr;
  fail("no thread can go on: %s", text);
}
// Runs what is ready next; if nothing is, the device's engines work.
void go_on() {
  while (!count_ready) {
    if (first_work == work.size()) report_deadlock();
    const auto next = std::move(work[first_work++]);
    next();
  }
  Fiber* const next = ready[first_ready];
  first_ready = (first_ready + 1) % ready.size(), count_ready--;
  if (next == current) return;
  Fiber* const before = current;
  enter(next);
  tracea_switch_stack(&before->place, next->place);
}
// Whether all that are waited for have arrived; then they go on.
bool complete(Block* block, Barrier& b) {
  if (b.arrived < (b.expected ? b.expected : block->live)) return false;
  b.result = b.votes;
  b.arrived = b.votes = b.expected = 0;
  wake(&b);
  return true;
}
bool complete_cluster() {
  if (cluster_arrived < live) return false;
  cluster_arrived = 0, cluster_phase++;
  wake(&cluster_phase);
  return true;
}
void finish(const Copy* copies, size_t count) {
  for (const Copy* c = copies; c < copies + count; c++)
    memcpy(c->to, c->from, c->read), memset(c->to + c->read, 0, c->bytes - c->read);
}
void run_thread() {
  kernel(arguments);
  for (const Group& group : current->stores)
    for (const auto& store : group) store();
  current->ended = true;
  Block* const block = current->block;
  live--, block->live--;
  if (!live && first_work < work.size()) fail("copies into shared memory are under way at the end");
  if (!live) end_launch();
  Barrier& b = block->barriers[0];
  if (b.arrived && !b.expected && block->live) complete(block, b);
  if (cluster_arrived) complete_cluster();
  go_on();
}
char* new_stack() {
  void* const p = mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE)) return nullptr;
  return (char*)p;
}
// Begins the blocks of a cluster, of which `first` is the first one's index.
void begin_cluster(Dim3 first) {
  first_ready = count_ready = 0;
  work.clear(), first_work = 0;
  clear_tensor_cores();
  live = (u32)fibers.size(), cluster_arrived = cluster_phase = 0;
  for (Block& b : blocks) {
    b.rank = u32(&b - blocks.data()), b.live = blockDim.x;
    b.index = first, b.index.x += b.rank;
    b.fibers = &fibers[b.rank * blockDim.x];
    b.memory = windows[b.rank];
    memset(b.memory, 0xff, WINDOW);
    memset(b.barriers, 0, sizeof b.barriers);
    for (auto& m : b.meetings) m.clear();
    for (u32 t = 0; t < blockDim.x; t++) {
      Fiber& f = b.fibers[t];
      f.place = begun_stack(stacks[&f - fibers.data()] + STACK, run_thread);
      f.block = &b, f.thread = t, f.key = nullptr, f.ended = false, f.cluster_phase = 0;
      f.copies.clear(), f.groups.clear(), f.stores.clear(), f.grouped = 0;
      make_ready(&f);
    }
  }
}
void on_signal(int number, siginfo_t* info, void*) {
  if (number == SIGVTALRM) fail("the launch has not ended within its time");
  fail("a thread touches memory at %p, where there is none", info->si_addr);
}
}  // namespace

void fail(const char* format, ...) {
  const int used =
      current ? snprintf(message, sizeof message, "thread %u of block (%u, %u, %u): ", threadIdx.x,
                         blockIdx.x, blockIdx.y, blockIdx.z)
              : 0;
  va_list values;
  va_start(values, format);
  vsnprintf(message + used, sizeof message - used, format, values);
  va_end(values);
  failed = true;
  end_launch();
}

void sleep(const char* what, const void* key) {
  current->waits = what, current->key = key;
  go_on();
}
void wake(const void* key) {
  for (Fiber& f : fibers)
    if (f.waits && f.key == key && !f.ended) make_ready(&f);
}
void wake_first(const void* key) {
  for (size_t k = fibers.size(); k-- > 0;) {
    Fiber& f = fibers[k];
    if (!f.waits || f.key != key || f.ended) continue;
    f.waits = nullptr;
    first_ready = (first_ready + ready.size() - 1) % ready.size();
    ready[first_ready] = &f, count_ready++;
  }
}
void later(std::function<void()> next) { work.push_back(std::move(next)); }
void store_later(std::function<void()> next) {
  if (current->stores.empty()) current->stores.emplace_back();
  current->stores.back().push_back(std::move(next));
}
u32 warp_in_cluster() { return current->block->rank * 32 + current->thread / 32; }

void together(const char* what, Together of, void* mine, u32 mask) {
  Block* const block = current->block;
  const u32 lane = current->thread % 32, first = current->thread - lane;
  if (first + 32 > blockDim.x) mask &= (1u << (blockDim.x - first)) - 1;
  if (!(mask >> lane & 1)) fail("%s of other lanes alone, mask %08x", what, mask);
  auto& meetings = block->meetings[first / 32];
  size_t k = 0;
  while (k < meetings.size() && meetings[k].mask != mask) k++;
  if (k == meetings.size()) meetings.push_back({what, of, mask, 0, {}});
  Meeting& m = meetings[k];
  if (m.of != of) fail("%s where other lanes of the warp are at %s", what, m.what);
  m.lanes[lane] = mine;
  m.arrived |= 1u << lane;
  if (m.arrived != mask) return sleep(what, nullptr);
  Meeting met = m;
  meetings.erase(meetings.begin() + (long)k);
  of(met.lanes, mask);
  for (u32 other = 0; other < 32; other++)
    if (other != lane && mask >> other & 1) make_ready(&block->fibers[first + other]);
}

u32 barrier(u32 id, u32 threads, bool waits, bool vote) {
  if (id > 15) fail("there is no barrier %u", id);
  Block* const block = current->block;
  Barrier& b = block->barriers[id];
  if (b.arrived && b.expected != threads)
    fail("barrier %u of %u threads, where others wait for %u", id, threads, b.expected);
  b.expected = threads;
  b.arrived++, b.votes += vote;
  if (!complete(block, b) && waits) sleep("a barrier", &b);
  return b.result;
}

void cluster_arrive() {
  current->cluster_phase = cluster_phase;
  cluster_arrived++;
  complete_cluster();
}
void cluster_wait() {
  if (current->cluster_phase == cluster_phase) sleep("the barrier of the cluster", &cluster_phase);
}
u32 cluster_rank() { return current->block->rank; }
u32 cluster_size() { return (u32)blocks.size(); }
void pause() {
  make_ready(current);
  go_on();
}

u32 address_of(const void* p) {
  for (const Block& b : blocks) {
    const size_t offset = size_t((const char*)p - b.memory);
    if (offset < WINDOW) return u32(offset) | (&b == current->block ? 0 : b.rank + 1) << RANK_BIT;
  }
  fail("%p is not in shared memory", p);
}
u32 address_in(u32 address, u32 rank) {
  if (rank >= blocks.size()) fail("there is no block %u in the cluster", rank);
  return (address & ((1u << RANK_BIT) - 1)) | (rank + 1) << RANK_BIT;
}
char* at(u32 address, u32 bytes, u32 alignment, const char* what) {
  const u32 rank = address >> RANK_BIT, offset = address & ((1u << RANK_BIT) - 1);
  if (rank > blocks.size() || offset < FIRST || offset + bytes > WINDOW)
    fail("%s at %x is not in shared memory", what, address);
  if (offset % alignment) fail("%s at %x, which is not a multiple of %u", what, address, alignment);
  return (rank ? blocks[rank - 1] : *current->block).memory + offset;
}
char* dynamic_shared(u32 alignment) {
  // No multiple of a larger power of two: what is not asked for may not be there.
  dynamic_at = FIRST + (FIRST / alignment % 2 ? 0 : alignment);
  return current->block->memory + dynamic_at;
}
u32 place_shared(u32& top, u32 bytes, u32 alignment) {
  top = ((top ? top : WINDOW) - bytes) & ~(alignment - 1);
  if (top < FIRST + dynamic_bytes + BEHIND) fail("more shared memory than a block may have");
  return top;
}
char* placed(u32 place) { return current->block->memory + place; }

void copy_late(u32 to, const void* from, u32 bytes, u32 read) {
  char* const place = at(to, bytes, bytes, "an asynchronous copy");
  if (read > bytes || (read && size_t(from) % bytes))
    fail("an asynchronous copy of %u of %u bytes from %p", read, bytes, from);
  memset(place, 0xff, bytes);
  current->copies.push_back({place, from, bytes, read});
}
void commit_copies() {
  current->groups.push_back(current->copies.size() - current->grouped);
  current->grouped = current->copies.size();
}
void wait_for_copies(u32 left) {
  auto& groups = current->groups;
  size_t count = 0;
  while (groups.size() > left) {
    count += groups.front();
    groups.erase(groups.begin());
  }
  finish(current->copies.data(), count);
  current->copies.erase(current->copies.begin(), current->copies.begin() + (long)count);
  current->grouped -= count;
}
std::function<void()> copies_so_far() {
  Fiber& f = *current;
  const auto copies = std::move(f.copies);
  f.copies.clear(), f.groups.clear(), f.grouped = 0;
  return [copies] { finish(copies.data(), copies.size()); };
}
void commit_stores() {
  if (!current->stores.empty()) current->stores.emplace_back();
}
void wait_for_stores(u32 left) {
  auto& groups = current->stores;
  while (groups.size() > left + 1) {
    for (const auto& store : groups.front()) store();
    groups.erase(groups.begin());
  }
}

extern "C" const char* emulate(void (*of)(void**), void** given, const u32* grid, u32 block,
                               u32 cluster, u32 shared_bytes, double seconds) {
  kernel = of, arguments = given, failed = false, dynamic_bytes = shared_bytes;
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block, 1, 1};
  fibers.assign(size_t(block) * cluster, {});
  blocks.assign(cluster, {});
  ready.assign(fibers.size() + 1, nullptr);
  while (stacks.size() < fibers.size()) stacks.push_back(new_stack());
  while (windows.size() < cluster) windows.push_back((char*)aligned_alloc(4096, WINDOW));

  struct sigaction mine = {}, before[3];
  const int signals[3] = {SIGVTALRM, SIGSEGV, SIGBUS};
  mine.sa_sigaction = on_signal, mine.sa_flags = SA_SIGINFO | SA_NODEFER;
  for (int k = 0; k < 3; k++) sigaction(signals[k], &mine, &before[k]);
  struct sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID, event.sigev_signo = SIGVTALRM;
  event._sigev_un._tid = (int)syscall(SYS_gettid);
  timer_t timer;
  const bool timed = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) == 0;
  struct itimerspec limit = {};
  limit.it_value.tv_sec = (time_t)seconds;
  limit.it_value.tv_nsec = long((seconds - double(limit.it_value.tv_sec)) * 1e9);
  if (timed) timer_settime(timer, 0, &limit, nullptr);

  for (u32 z = 0; z < grid[2] && !failed; z++)
    for (u32 y = 0; y < grid[1] && !failed; y++)
      for (u32 x = 0; x < grid[0] && !failed; x += cluster) {
        begin_cluster({x, y, z});
        Fiber* const next = ready[first_ready];
        first_ready = (first_ready + 1) % ready.size(), count_ready--;
        enter(next);
        tracea_switch_stack(&host, next->place);
        for (const Block& b : blocks)
          for (u32 k = 0; k < BEHIND && dynamic_bytes && !failed; k++)
            if (b.memory[dynamic_at + dynamic_bytes + k] != (char)0xff) {
              failed = true;
              snprintf(message, sizeof message,
                       "block (%u, %u, %u) writes behind its %u bytes of shared memory", b.index.x,
                       b.index.y, b.index.z, dynamic_bytes);
            }
        if (failed) break;
      }
  current = nullptr;
  if (timed) timer_delete(timer);
  for (int k = 0; k < 3; k++) sigaction(signals[k], &before[k], nullptr);
  return failed ? message : nullptr;
}
}  // namespace emulated
