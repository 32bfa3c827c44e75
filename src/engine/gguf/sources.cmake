# The GGUF validator's sources, relative to src/engine.
set(KVANT_GGUF_SOURCES
  gguf/gguf_architecture.cc
  gguf/gguf_check.cc
  gguf/gguf_header.cc
  gguf/gguf_metadata.cc
  gguf/gguf_model.cc
  gguf/gguf_model_tensors.cc
  gguf/gguf_reader.cc
  gguf/gguf_tensors.cc
  gguf/gguf_tokenizer.cc
  gguf/gguf_vocabulary.cc)
