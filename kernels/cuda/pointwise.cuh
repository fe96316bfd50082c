// V elements of an operand. KIND: 1 contiguous, 0 all the same, 2 `step` apart.
template <int V, int KIND, class E> DEV Vec<E, V> fetch(const E* p, i64 step) {
  if (KIND == 1 || V == 1) return load<V>(p);
  Vec<E, V> r;
#pragma unroll
  for (int j = 0; j < V; j++) r.v[j] = p[KIND == 0 ? 0 : j * step];
  return r;
}
