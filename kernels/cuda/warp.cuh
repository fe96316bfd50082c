// What threads of a warp hand to each other through shared memory. All threads of the block call it.
DEV void sync_warp() {
#ifdef RACECHECK
  __syncthreads();  // it does not know what __syncwarp orders
#else
  __syncwarp();
#endif
}
