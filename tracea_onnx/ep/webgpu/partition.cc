#include "webgpu/partition.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ort/boundary.h"
#include "ort/graph.h"
#include "plan/failure.h"
#include "plan/memory.h"

namespace tracea::webgpu {
namespace {

constexpr size_t kWord = 4;
// Readable behind an operand, within the slack of its buffer: vectors of four floats.
constexpr size_t kVector = 16;

std::string bad_index(const Plan& plan, const char* where) {
  return std::string("a kernel met an index out of range of its tensor") + where + " (partition '" +
         plan.name + "')";
}

uint32_t word_of(int64_t n) {
  if (n < INT32_MIN || n > INT32_MAX)
    throw Failure("a size of " + std::to_string(n) + ": WebGPU kernels count in 32 bits");
  return uint32_t(int32_t(n));
}

}  // namespace

Pipelines make_pipelines(Device& device, const Plan& plan) {
  Pipelines out;
  const auto make = [&](const std::vector<LaunchSpec>& specs, auto& to) {
    for (const LaunchSpec& spec : specs) {
      const Launch& l = webgpu_launch(spec);
      if (l.signature.size() > device.limits.storage_buffers)
        throw NoKernel("kernel '" + l.symbol + "' binds " + std::to_string(l.signature.size()) +
                       " buffers, adapter '" + device.name + "' " +
                       std::to_string(device.limits.storage_buffers) + " at most");
      try {
        to.push_back(device.pipeline(plan.pack->blobs()[size_t(l.source)], l.signature));
      } catch (const Failure& e) {
        throw NoKernel("kernel '" + l.symbol + "': " + e.what());
      }
    }
  };
  make(plan.run, out.run);
  make(plan.init, out.init);
  return out;
}

Partition::Partition(std::shared_ptr<const Plan> plan, std::shared_ptr<Device> device,
                     const Initializers& initializers)
    : plan_(std::move(plan)), device_(std::move(device)) {
  const std::lock_guard<std::mutex> lock(device_->use);
  pipelines_ = make_pipelines(*device_, *plan_);
  make_constants(initializers);
}

void Partition::make_constants(const Initializers& initializers) {
  const DeviceConstants laid = lay_out_constants(*plan_, initializers, kDeviceAlign);
  const size_t n = plan_->buffers.size(), fault_at = laid.passing_total;
  layout_ = laid.stays;
  constants_ =
      device_->buffer(layout_.total, kStorage | kCopyTarget);  // WebGPU clears what it gives
  const Object temporary =
      device_->buffer(fault_at + kDeviceAlign, kStorage | kCopyTarget | kCopySource);
  std::vector<Place> base(n);
  for (size_t k = 0; k < n; k++) {
    const bool stays = layout_.offset[k] >= 0;
    base[k] = {stays ? constants_.get() : temporary.get(),
               stays ? uint64_t(layout_.offset[k]) : laid.passing[k], uint64_t(layout_.bytes[k])};
    if (const Blob& source = laid.source[k]; source.bytes)
      device_->write(base[k].buffer, base[k].offset, source.data, source.bytes);
  }
  device_->check("copying the constants");
  if (plan_->init.empty()) return;
  std::vector<Place> places;
  std::vector<int64_t> ints;
  bool faults = false;
  for (const LaunchSpec& l : plan_->init) {
    for (const OperandSpec& o : l.operands) {
      const int64_t offset = laid.value[size_t(o.offset)];
      const Place& whole = base[size_t(o.buffer)];
      if (offset < 0 || offset > layout_.bytes[size_t(o.buffer)])
        throw Failure(std::string("an operand of '") + l.name() + "' starts outside its buffer");
      places.push_back(
          {whole.buffer, whole.offset + uint64_t(offset), whole.bytes - uint64_t(offset)});
    }
    for (int e : l.ints) ints.push_back(laid.value[size_t(e)]);
    faults |= webgpu_launch(l).faults;
  }
  const Launches launches =
      lay_out(plan_->init, pipelines_.init, places, ints, std::vector<char>(plan_->init.size(), 1),
              {temporary.get(), fault_at, kWord});
  Object encoder(device_->api.create_encoder(device_->device(), nullptr),
                 device_->api.release_encoder);
  encode(encoder.get(), launches);
  const Object reading = device_->buffer(kWord, kMapRead | kCopyTarget);
  device_->api.copy(encoder.get(), temporary.get(), fault_at, reading.get(), 0, kWord);
  submit(encoder);
  read(reading.get(), kWord, [&](const char* data) {
    uint32_t fault;
    memcpy(&fault, data, kWord);
    if (faults && fault) bad_constants_ = bad_index(*plan_, " in constants");
  });
  device_->check("preparing the constants of partition '" + plan_->name + "'");
}

Partition::Launches Partition::lay_out(
    const std::vector<LaunchSpec>& specs,
    const std::vector<std::shared_ptr<const Pipeline>>& pipelines, const std::vector<Place>& places,
    const std::vector<int64_t>& ints, const std::vector<char>& needed, const Place& fault) {
  const Limits& limits = device_->limits;
  std::vector<std::vector<GroupEntry>> entries;
  std::vector<uint32_t> sizes;
  std::vector<std::pair<size_t, size_t>> parts;  // of `sizes`, by launch: first word, words
  Launches out;
  std::vector<size_t> which;
  size_t operand = 0, integer = 0;
  for (size_t l = 0; l < specs.size(); l++) {
    const Launch& own = webgpu_launch(specs[l]);
    const int64_t* const its_ints = ints.data() + integer;
    const Place* const its_places = places.data() + operand;
    integer += specs[l].ints.size(), operand += specs[l].operands.size();
    Ready ready{pipelines[l]->pipeline.get(), Object(), {}};
    bool empty = !needed[l];
    for (size_t d = 0; d < 3; d++) {
      empty |= its_ints[d] <= 0;
      if (its_ints[d] > int64_t(limits.workgroups))
        throw Failure("'" + own.symbol + "' has " + std::to_string(its_ints[d]) +
                      " workgroups, adapter '" + device_->name + "' launches " +
                      std::to_string(limits.workgroups) + " at most");
      ready.grid[d] = uint32_t(std::max(its_ints[d], int64_t(0)));
    }
    if (empty) continue;
    sizes.resize(align_up(sizes.size() * kWord, limits.uniform_alignment) / kWord, 0);
    const size_t first = sizes.size();
    std::vector<GroupEntry> its(1, GroupEntry{});
    const auto bind = [&](const Place& p) {
      const uint64_t rest = p.offset % limits.storage_alignment;
      GroupEntry e{};
      e.binding = uint32_t(its.size());
      e.buffer = p.buffer;
      e.offset = p.offset - rest;
      e.size = align_up(rest + p.bytes + kVector, kVector);
      if (e.size > limits.storage_binding)
        throw Failure("an operand of '" + own.symbol + "' has " + std::to_string(p.bytes) +
                      " bytes, adapter '" + device_->name + "' binds " +
                      std::to_string(limits.storage_binding) + " at most");
      its.push_back(e);
      return uint32_t(rest);
    };
    size_t pointers = 0, numbers = 3, floats = 0;
    for (const Argument a : own.arguments) switch (a) {
        case Argument::kPointer: sizes.push_back(bind(its_places[pointers++])); break;
        case Argument::kInt: sizes.push_back(word_of(its_ints[numbers++])); break;
        case Argument::kFloat: {
          uint32_t bits;
          memcpy(&bits, &specs[l].floats[floats++], sizeof bits);
          sizes.push_back(bits);
          break;
        }
        case Argument::kFault: bind(fault); break;
      }
    parts.emplace_back(first, sizes.size() - first);
    entries.push_back(std::move(its));
    out.ready.push_back(std::move(ready));
    which.push_back(l);
  }
  out.sizes = device_->buffer(sizes.size() * kWord + kVector, kUniform | kCopyTarget);
  if (!sizes.empty()) device_->write(out.sizes.get(), 0, sizes.data(), sizes.size() * kWord);
  for (size_t k = 0; k < out.ready.size(); k++) {
    GroupEntry& words = entries[k].front();
    words.buffer = out.sizes.get();
    words.offset = parts[k].first * kWord;
    words.size = align_up(std::max(parts[k].second, size_t(1)) * kWord, kVector);
    GroupDescriptor wanted{};
    wanted.layout = pipelines[which[k]]->layout.get();
    wanted.count = entries[k].size();
    wanted.entries = entries[k].data();
    out.ready[k].group =
        Object(device_->api.create_group(device_->device(), &wanted), device_->api.release_group);
    device_->check("binding the operands of '" + webgpu_launch(specs[which[k]]).symbol + "'");
  }
  return out;
}

void Partition::encode(Handle encoder, const Launches& launches) const {
  if (launches.ready.empty()) return;
  const Api& api = device_->api;
  const Object pass(api.begin_pass(encoder, nullptr), api.release_pass);
  for (const Ready& r : launches.ready) {
    api.set_pipeline(pass.get(), r.pipeline);
    api.set_group(pass.get(), 0, r.group.get(), 0, nullptr);
    api.dispatch(pass.get(), r.grid[0], r.grid[1], r.grid[2]);
  }
  api.end_pass(pass.get());
}

void Partition::submit(Object& encoder) const {
  const Api& api = device_->api;
  const Object commands(api.finish(encoder.get(), nullptr), api.release_commands);
  device_->check("recording partition '" + plan_->name + "'");
  const Handle one = commands.get();
  api.submit(device_->queue(), 1, &one);
}

template <class Read>
void Partition::read(Handle buffer, size_t bytes, Read&& use) {
  const Api& api = device_->api;
  struct Answer {
    bool done = false;
    std::string why;
  } answer;
  MapCallback callback{};
  callback.mode = kAllowSpontaneous;
  callback.call = Callback<void(uint32_t, Text, void*, void*)>(
      [](uint32_t status, Text message, void* to, void*) {
        Answer& a = *static_cast<Answer*>(to);
        a.done = true;
        if (status != kSuccess) a.why = "the result cannot be read: " + line_of(message);
      });
  callback.first = &answer;
  api.map(buffer, kMapModeRead, 0, bytes, callback);
  api.poll(device_->device(), 1, nullptr);
  device_->check("running partition '" + plan_->name + "'");
  if (!answer.done) throw Failure("running partition '" + plan_->name + "': it did not end");
  if (!answer.why.empty()) throw Failure("running partition '" + plan_->name + "': " + answer.why);
  const auto* data = static_cast<const char*>(api.mapped(buffer, 0, bytes));
  if (data) use(data);
  api.unmap(buffer);
  if (!data) throw Failure("running partition '" + plan_->name + "': nothing to read");
}

Partition::Prepared& Partition::prepared(const std::shared_ptr<const Bound>& bound) {
  const auto it = std::find_if(prepared_.begin(), prepared_.end(),
                               [&](const Prepared& p) { return p.bound == bound; });
  if (it != prepared_.end()) {
    prepared_.splice(prepared_.begin(), prepared_, it);
    return prepared_.front();
  }
  if (prepared_.size() == kPrepared) prepared_.pop_back();
  Prepared p;
  p.bound = bound;
  size_t end = align_up(bound->arena_bytes, kDeviceAlign);
  const auto places = [&](const std::vector<size_t>& bytes, std::vector<size_t>& at) {
    for (size_t b : bytes) at.push_back(end), end += align_up(b + kSlack, kDeviceAlign);
  };
  places(bound->input_bytes, p.input_at);
  places(bound->output_bytes, p.output_at);
  p.fault_at = end;
  end += kDeviceAlign;
  p.memory = device_->buffer(end, kStorage | kCopySource | kCopyTarget);
  p.reading_bytes = kWord;
  for (size_t b : bound->output_bytes) p.reading_bytes += align_up(b, kWord);
  p.reading = device_->buffer(p.reading_bytes, kMapRead | kCopyTarget);

  // How far each operand's own buffer reaches.
  std::vector<int64_t> symbols;
  std::vector<size_t> rank_at(plan_->inputs.size() + 1, 0);
  for (size_t k = 0; k < plan_->inputs.size(); k++)
    rank_at[k + 1] = rank_at[k] + size_t(plan_->inputs[k].rank);
  for (const AxisSpec& s : plan_->symbols)
    symbols.push_back(bound->key[rank_at[size_t(s.input)] + size_t(s.axis)]);
  const std::vector<int64_t> value = plan_->evaluate(symbols);
  std::vector<Place> operands;
  size_t o = 0;
  for (const LaunchSpec& l : plan_->run)
    for (const OperandSpec& spec : l.operands) {
      const auto& at = bound->operands[o++];
      const BufferSpec& b = plan_->buffers[size_t(spec.buffer)];
      const auto index = size_t(b.index);
      uint64_t bytes = 0;
      switch (b.kind) {
        case BufferKind::kInput: bytes = bound->input_bytes[index]; break;
        case BufferKind::kOutput: bytes = bound->output_bytes[index]; break;
        case BufferKind::kArena: bytes = uint64_t(value[size_t(b.bytes)]); break;
        default: bytes = uint64_t(layout_.bytes[size_t(spec.buffer)]);
      }
      const uint64_t offset = bytes ? uint64_t(value[size_t(spec.offset)]) : 0;
      const auto place = uint64_t(at.offset);
      switch (at.base) {
        case Base::kInput:
          operands.push_back(
              {p.memory.get(), p.input_at[size_t(at.index)] + place, bytes - offset});
          break;
        case Base::kOutput:
          operands.push_back(
              {p.memory.get(), p.output_at[size_t(at.index)] + place, bytes - offset});
          break;
        case Base::kArena: operands.push_back({p.memory.get(), place, bytes - offset}); break;
        default: operands.push_back({constants_.get(), place, bytes - offset});
      }
    }
  p.launches = lay_out(plan_->run, pipelines_.run, operands, bound->ints, bound->needed,
                       {p.memory.get(), p.fault_at, kWord});
  prepared_.push_front(std::move(p));
  return prepared_.front();
}

void Partition::compute(OrtKernelContext* context, const std::vector<size_t>& inputs,
                        const std::vector<size_t>& outputs) {
  std::vector<InputTensor> in(inputs.size());
  for (size_t k = 0; k < inputs.size(); k++) {
    const OrtValue* value = nullptr;
    check(ort.KernelContext_GetInput(context, inputs[k], &value));
    if (!value) throw Failure("input '" + plan_->inputs[k].name + "' is missing");
    InputTensor& t = in[k];
    check(ort.GetTensorElementTypeAndShapeDataReference(value, &t.type, &t.dims, &t.rank));
    check(ort.GetTensorData(value, &t.data));
  }
  const std::shared_ptr<const Bound> bound = bounds_.get(*plan_, layout_, in);
  std::vector<void*> out(outputs.size(), nullptr);
  for (size_t k = 0; k < outputs.size(); k++) {
    const std::vector<int64_t>& dims = bound->output_dims[k];
    OrtValue* value = nullptr;
    check(ort.KernelContext_GetOutput(context, outputs[k], dims.data(), dims.size(), &value));
    check(ort.GetTensorMutableData(value, &out[k]));
  }
  if (!bad_constants_.empty()) throw Failure(bad_constants_);
  const std::lock_guard<std::mutex> lock(device_->use);
  const Api& api = device_->api;
  Prepared& p = prepared(bound);
  for (size_t k = 0; k < in.size(); k++)
    if (bound->input_bytes[k])
      device_->write(p.memory.get(), p.input_at[k], in[k].data, bound->input_bytes[k]);
  constexpr uint32_t kNone = 0;
  device_->write(p.memory.get(), p.fault_at, &kNone, sizeof kNone);
  Object encoder(api.create_encoder(device_->device(), nullptr), api.release_encoder);
  encode(encoder.get(), p.launches);
  size_t at = 0;
  for (size_t k = 0; k < out.size(); k++) {
    const size_t bytes = align_up(bound->output_bytes[k], kWord);
    if (bytes) api.copy(encoder.get(), p.memory.get(), p.output_at[k], p.reading.get(), at, bytes);
    at += bytes;
  }
  api.copy(encoder.get(), p.memory.get(), p.fault_at, p.reading.get(), at, kWord);
  submit(encoder);
  read(p.reading.get(), p.reading_bytes, [&](const char* data) {
    uint32_t fault;
    memcpy(&fault, data + at, kWord);
    size_t from = 0;
    for (size_t k = 0; k < out.size(); k++) {
      if (bound->output_bytes[k]) memcpy(out[k], data + from, bound->output_bytes[k]);
      from += align_up(bound->output_bytes[k], kWord);
    }
    at = fault;
  });
  if (at) throw Failure(bad_index(*plan_, ""));
  stats.runs++;
}

}  // namespace tracea::webgpu
