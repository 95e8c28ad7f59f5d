"""What `triport profile` is made of: what is profiled (target), runs under the profilers (session), the CPU backend's spans in torch's trace
(timeline), sampled stacks (flame), hardware counters (counters), and the page of all of it (page)."""
