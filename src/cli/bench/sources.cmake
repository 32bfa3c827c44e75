set(KVANT_BENCH_SOURCES attend_job.cc attention_bench.cc attention_layers.cc bench_command.cc codec_bench.cc codec_work.cc
    decode_bench.cc decode_run.cc divergence.cc kvant_arm.cc llama_arm.cc measure.cc memory.cc pack_bench.cc pack_work.cc pair_rows.cc report.cc)
if(KVANT_CUDA_ENABLED AND KVANT_CUDA STREQUAL "ON")
  list(APPEND KVANT_BENCH_SOURCES gpu_bench.cc)
else()
  list(APPEND KVANT_BENCH_SOURCES gpu_absent.cc)
endif()
list(TRANSFORM KVANT_BENCH_SOURCES PREPEND bench/)
