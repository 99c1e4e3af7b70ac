// Calls that have no overload, or none that the twin models, for test_overloads.py: each line marked `refused` has to be
// an error of the compiler, on both architectures or on the one named, and no other line. None of it runs.
#include "kernel_operator.h"

using namespace AscendC;

void vectors() {
  LocalTensor<float> f;
  LocalTensor<half> h;
  LocalTensor<bfloat16_t> b;
  LocalTensor<int32_t> i;
  LocalTensor<int16_t> s;
  LocalTensor<int8_t> c;
  LocalTensor<uint8_t> u;
  LocalTensor<uint32_t> w;
  Add(f, f, f, 64);
  Add(h, h, h, 64);
  Add(b, b, b, 64);                                          // refused on 2201
  Mul(b, b, b, 64);                                          // refused on 2201
  Adds(b, b, bfloat16_t{}, 64);                              // refused on 2201
  Add(c, c, c, 64);                                          // refused on 2201
  Add(f, h, f, 64);                                          // refused
  Add(f, f, 64);                                             // refused
  Div(i, i, i, 64);                                          // refused
  Div(b, b, b, 64);                                          // refused
  Exp(f, f, 64);
  Exp(b, b, 64);                                             // refused
  Exp(i, i, 64);                                             // refused
  Sqrt(s, s, 64);                                            // refused
  Rsqrt(f, f, 64);                                           // refused
  Reciprocal(f, f, 64);                                      // refused
  And(s, s, s, 64);
  And(f, f, f, 64);                                          // refused
  ShiftLeft(f, f, 1.0f, 64);                                 // refused
  Cast(f, h, RoundMode::CAST_NONE, 64);
  Cast(b, f, RoundMode::CAST_RINT, 64);
  Cast(b, h, RoundMode::CAST_RINT, 64);                      // refused on 2201
  Cast(h, b, RoundMode::CAST_RINT, 64);                      // refused on 2201
  Cast(h, i, RoundMode::CAST_NONE, 64);                      // refused
  Cast(f, h, 1, 64);                                         // refused
  Cast(f, h, 64);                                            // refused
  ReduceSum(f, f, f, 64);
  ReduceSum(f, f, 64);                                       // refused
  ReduceSum(i, i, i, 64);                                    // refused
  WholeReduceMax(b, b, 64, 1, 1, 1, 8);                      // refused
  PairReduceSum(s, s, 1, 64, 1, 1, 8);                       // refused
  Compare(u, f, f, CMPMODE::LT, 64);
  Compare(f, f, f, CMPMODE::LT, 64);                         // refused
  Select(f, u, f, f, SELMODE::VSEL_TENSOR_TENSOR_MODE, 64);
  Select(f, f, f, f, SELMODE::VSEL_TENSOR_TENSOR_MODE, 64);  // refused
  Gather(f, f, w, 0, 64);
  Gather(f, f, i, 0, 64);                                    // refused
  Duplicate(b, bfloat16_t{}, 64);
  Sort32(i, i, w, 1);                                        // refused
  SetAtomicAdd<float>();
  SetAtomicAdd<uint8_t>();                                   // refused
}

void copies() {
  LocalTensor<float> f;
  LocalTensor<half> h;
  GlobalTensor<float> gf;
  GlobalTensor<half> gh;
  DataCopy(f, gf, 64);
  DataCopy(f, gh, 64);                                       // refused
  DataCopy(gf, gf, 64);                                      // refused
  DataCopyPad(f, gf, DataCopyExtParams(), DataCopyPadExtParams<float>());
  DataCopyPad(f, gf, DataCopyExtParams(), DataCopyPadExtParams<half>());   // refused
  DataCopyPad(f, gf, DataCopyExtParams());                                 // refused
  DataCopyPad(gf, f, DataCopyExtParams(), DataCopyPadExtParams<float>());  // refused
  gf.SetValue(0, 1.0f);                                      // refused
}

void cubes() {
  LocalTensor<float> f;
  LocalTensor<half> h;
  LocalTensor<bfloat16_t> b;
  LocalTensor<int8_t> c;
  LocalTensor<int32_t> i;
  GlobalTensor<float> gf;
  GlobalTensor<bfloat16_t> gb;
  GlobalTensor<int8_t> gc;
  DataCopy(c, gc, Nd2NzParams());                            // refused
  LoadData(b, b, LoadData2DParams());
  LoadData(c, c, LoadData2DParams());                        // refused
  LoadData(h, f, LoadData2DParams());                        // refused
  InitConstValue(f, InitConstValueParams<float>());
  InitConstValue(f, InitConstValueParams<half>());           // refused
  InitConstValue(c, InitConstValueParams<int8_t>());         // refused
  Fill(b, InitConstValueParams<bfloat16_t>());
  Mmad(f, b, b, MmadParams());
  Mmad(f, h, b, MmadParams());                               // refused
  Mmad(h, h, h, MmadParams());                               // refused
  Mmad(i, c, c, MmadParams());                               // refused
  SetCtrlSpr<48, 48>(1);
  SetCtrlSpr<60, 60>(1);                                     // refused
#if __NPU_ARCH__ == 3510
  const FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> rows;
  const FixpipeParamsArch3510<CO2Layout::NZ> fractals;
#else
  const FixpipeParamsV220 rows, fractals;
#endif
  Fixpipe<float, float, CFG_ROW_MAJOR>(gf, f, rows);
  Fixpipe<bfloat16_t, float, CFG_ROW_MAJOR>(gb, f, rows);
  Fixpipe<int8_t, float, CFG_ROW_MAJOR>(gc, f, rows);        // refused
  Fixpipe<float, int32_t, CFG_ROW_MAJOR>(gf, i, rows);       // refused
  Fixpipe<float, float, CFG_NZ>(gf, f, fractals);            // refused
}

void only_one_architecture_has() {
  LocalTensor<half> h;
  MmadParams p;
  LoadDataWithTranspose(h, h, LoadData2dTransposeParams());  // refused on 3510
  LoadData(h, h, LoadData2DParamsV2());                      // refused on 2201
  SetSaturationFlag<SaturationMode::FLOAT>(true);            // refused on 3510
  p.disableGemv = true;                                      // refused on 2201
  FixpipeParamsV220();                                       // refused on 3510
}
