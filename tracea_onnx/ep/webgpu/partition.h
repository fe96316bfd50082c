// One compiled partition on a device of WebGPU: its plan, its pipelines, its constants in device
// memory, and the buffers and bind groups of the shapes that it ran with last.
#pragma once
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "plan/bound.h"
#include "plan/runtime.h"
#include "webgpu/device.h"
#include "webgpu/plan.h"

namespace tracea::webgpu {

// What operands' addresses are multiples of in a buffer: the default of WebGPU's limit, which no
// adapter exceeds.
constexpr size_t kDeviceAlign = 256;

// Of the launches of a run, then of those that prepare constants.
struct Pipelines {
  std::vector<std::shared_ptr<const Pipeline>> run, init;
};
// Throws NoKernel where the device takes one of them not.
Pipelines make_pipelines(Device& device, const Plan& plan);

class Partition : public Executable, Counted<&Stats::live_partitions> {
 public:
  // Copies the constants and runs the init launches. Throws Failure.
  Partition(std::shared_ptr<const Plan> plan, std::shared_ptr<Device> device,
            const Initializers& initializers);
  void compute(OrtKernelContext* context, const std::vector<size_t>& inputs,
               const std::vector<size_t>& outputs) override;

 private:
  static constexpr size_t kPrepared = 4;

  // A part of a buffer that a launch is bound to.
  struct Place {
    Handle buffer;
    uint64_t offset, bytes;  // bytes: to the end of the operand's own buffer
  };
  // A launch with its bind group.
  struct Ready {
    Handle pipeline;
    Object group;
    uint32_t grid[3];
  };
  struct Launches {
    Object sizes;
    std::vector<Ready> ready;
  };
  // Buffers and launches for one set of shapes.
  struct Prepared : Counted<&Stats::live_prepared> {
    std::shared_ptr<const Bound> bound;
    std::vector<size_t> input_at, output_at;  // in `memory`
    size_t fault_at;
    Object memory, reading;  // reading: the outputs, one behind the other, then the fault word
    size_t reading_bytes;
    Launches launches;
  };

  void make_constants(const Initializers& initializers);
  Launches lay_out(const std::vector<LaunchSpec>& specs,
                   const std::vector<std::shared_ptr<const Pipeline>>& pipelines,
                   const std::vector<Place>& places, const std::vector<int64_t>& ints,
                   const std::vector<char>& needed, const Place& fault);
  void encode(Handle encoder, const Launches& launches) const;
  void submit(Object& encoder) const;
  // The contents of a buffer for reading, once all work that was submitted has ended.
  template <class Read>
  void read(Handle buffer, size_t bytes, Read&& use);
  Prepared& prepared(const std::shared_ptr<const Bound>& bound);

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Device> device_;
  Pipelines pipelines_;
  ConstantLayout layout_;
  Object constants_;
  std::string bad_constants_;  // why every run fails, as it does in ONNX Runtime: an init launch
                               // met bad data
  BoundPlans bounds_;
  std::list<Prepared> prepared_;  // most recent first
};

}  // namespace tracea::webgpu
