#pragma once

#include "kernels/cuda/decode_kernel.cuh"
#include "kernels/cuda/decode_variants.h"

namespace kvant::kernels::cuda {

template <class Config, class... Tiles>
DecodeVariant MakeVariant(uint32_t value_bits, uint32_t pair_unit_tiles) {
  DecodeVariant variant;
  variant.head_dim = Config::kHeadDim;
  variant.pair_pages = value_bits != 0;
  variant.value_bits = value_bits;
  variant.pair_unit_tiles = pair_unit_tiles;
  variant.soft_cap = Config::kSoftCap;
  variant.warps = Config::kWarps;
  variant.fixed_shared = Config::kRings;
  variant.least_stage = Config::kLeastStage;
  variant.kernel = reinterpret_cast<const void*>(&DecodeKernel<Config, Tiles...>);
  variant.launch = [](const DecodeParams& params, uint32_t blocks, uint32_t shared_bytes, cudaStream_t stream) {
    DecodeKernel<Config, Tiles...><<<blocks, Config::kWarps * 32, shared_bytes, stream>>>(params);
  };
  return variant;
}

template <int kHeadDim, int kWarps, bool kSoftCap>
DecodeVariant MakeTokenVariant() {
  using codec::TokenCodec;
  return MakeVariant<DecodeConfig<kHeadDim, kWarps, kSoftCap, float>, TokenTiles<TokenCodec::kFp16, kHeadDim>,
                     TokenTiles<TokenCodec::kInt8, kHeadDim>, TokenTiles<TokenCodec::kInt4, kHeadDim>,
                     TokenTiles<TokenCodec::kInt4Affine, kHeadDim>>(0, 0);
}

template <int kHeadDim, int kWarps, bool kSoftCap>
DecodeVariant MakeBf16Variant() {
  DecodeVariant variant = MakeVariant<DecodeConfig<kHeadDim, kWarps, kSoftCap, float>,
                                      TokenTiles<codec::TokenCodec::kFp16, kHeadDim, true>>(0, 0);
  variant.bf16_pages = true;
  return variant;
}

template <int kHeadDim, int kWarps, bool kSoftCap, int kValueBits, int kUnitTiles, PairSteps kKind = PairSteps::kAny,
          int kGroups = 1>
DecodeVariant MakePairVariant() {
  DecodeVariant variant =
      MakeVariant<DecodeConfig<kHeadDim, kWarps, kSoftCap, __half>, TokenTiles<codec::TokenCodec::kFp16, kHeadDim>,
                  PairTiles<kHeadDim, kValueBits, kUnitTiles, kKind, kGroups>>(kValueBits, kUnitTiles);
  variant.half_three_one = kKind == PairSteps::kHalfThreeOne;
  variant.value_groups = kGroups;
  return variant;
}

}  // namespace kvant::kernels::cuda
