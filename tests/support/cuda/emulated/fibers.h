// Stacks that one host thread switches between.
#pragma once
#include <stdint.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#error "stacks are switched on x86-64 and AArch64 only"
#endif

// Keeps what the caller goes on with at *from, and goes on at `to`.
extern "C" void tracea_switch_stack(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl tracea_switch_stack
.hidden tracea_switch_stack
.type tracea_switch_stack, @function
tracea_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
asm(R"(
.text
.globl tracea_switch_stack
.hidden tracea_switch_stack
.type tracea_switch_stack, %function
tracea_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#endif

// Where a stack that ends at `top` begins `entry`, which never returns.
inline void* begun_stack(char* top, void (*entry)()) {
  uint64_t* place = (uint64_t*)((uintptr_t)top & ~uintptr_t(15));
#if defined(__x86_64__)
  *--place = 0;  // the return address of `entry`
  *--place = (uint64_t)entry;
  for (int k = 0; k < 6; k++) *--place = 0;
#else
  for (int k = 0; k < 20; k++) *--place = 0;
  place[11] = (uint64_t)entry;  // x30
#endif
  return place;
}
