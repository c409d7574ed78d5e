"""Operations that come back from all numbers, with results of a size that does not follow them.

What is not here and has no check (`kernels`, `indices`) is not called on numbers of a record: a
list of what is known to end a run would miss what nobody has tried. Operations are here that
`tests/fuzz/fuzz_kernels.py` has called on numbers of all kinds, and such as only move tensors,
variables and lists. Inputs that can only be integers do not count: they are checked or refused
(`indices.sizes_of`).
"""

_ELEMENTWISE = """
Abs Acos Acosh Add AddN AddV2 Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e
BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc
BitwiseAnd BitwiseOr BitwiseXor Cast Ceil ClipByValue Complex ComplexAbs Conj Cos Cosh Dawsn Digamma
Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expint Expm1 Floor FloorDiv FloorMod FresnelCos
FresnelSin Greater GreaterEqual Igamma Igammac IgammaGradA Imag Inv Invert InvGrad IsFinite IsInf
IsNan LeakyRelu LeakyReluGrad LeftShift Less LessEqual Lgamma LinSpace Log Log1p LogicalAnd
LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual Polygamma
PopulationCount Pow Real RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift
Rint Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus
SoftplusGrad Softsign SoftsignGrad Spence Sqrt SqrtGrad Square SquaredDifference Sub Tan Tanh
TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
"""
_REDUCTIONS = """
All Any ArgMax ArgMin BiasAddGrad Cumprod Cumsum CumulativeLogsumexp EuclideanNorm InTopK InTopKV2
L2Loss LogSoftmax Max Mean Min NthElement Prod Softmax SoftmaxCrossEntropyWithLogits
SparseSegmentMeanGradV2 SparseSegmentSqrtNGradV2 SparseSegmentSumGradV2 Sum TopKV2
"""
_ARRAYS = """
BatchToSpaceND BiasAdd BiasAddV1 Bitcast BroadcastTo Bucketize Concat ConcatV2 ConjugateTranspose
DepthToSpace Diag DiagPart DynamicStitch EnsureShape ExpandDims ExtractImagePatches
ExtractVolumePatches Fill Identity IdentityN LowerBound
MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3
MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 OneHot OnesLike Pack ParallelDynamicStitch
PlaceholderWithDefault PreventGradient Rank Reshape Reverse ReverseV2 Shape ShapeN Size Snapshot
SpaceToBatch SpaceToBatchND SpaceToDepth Split SplitV Squeeze StopGradient TensorStridedSliceUpdate
Tile Transpose Unpack UpperBound ZerosLike
"""
_LINEAR_ALGEBRA = """
BatchMatMul BatchMatMulV2 BatchMatMulV3 Cholesky CholeskyGrad Cross Einsum LogMatrixDeterminant
MatMul MatrixDeterminant MatrixSquareRoot MatrixTriangularSolve Qr SparseMatMul Svd
TridiagonalMatMul TridiagonalSolve
"""
_NETWORKS = """
AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad Conv Conv2D Conv2DBackpropFilter Conv2DBackpropInput
Conv3D Conv3DBackpropFilterV2 Conv3DBackpropInputV2 DepthwiseConv2dNative
DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Dilation2D
Dilation2DBackpropFilter Dilation2DBackpropInput FusedBatchNorm FusedBatchNormGrad
FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2 FusedBatchNormV3 LRN LRNGrad MaxPool
MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad MaxPoolGradGradV2
MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax
"""
# These have no kernels for a CPU, and have not been tried.
_NETWORKS_ON_GPU = """
CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3
"""
_SIGNALS = """
AdjustContrastv2 AdjustSaturation AudioSpectrogram FFT FFT2D FFT3D HSVToRGB IFFT IFFT2D IFFT3D
ImageProjectiveTransformV2 ImageProjectiveTransformV3 IRFFT IRFFT2D IRFFT3D ResizeArea ResizeBicubic
ResizeBicubicGrad ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor ResizeNearestNeighborGrad
RFFT RFFT2D RFFT3D RGBToHSV
"""
_QUANTIZATION = """
FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
FakeQuantWithMinMaxVarsGradient FakeQuantWithMinMaxVarsPerChannel
FakeQuantWithMinMaxVarsPerChannelGradient QuantizeAndDequantizeV4Grad
"""
_TEXTS = """
StaticRegexFullMatch StaticRegexReplace StringJoin StringLength StringLower StringStrip
StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringUpper
"""
# What is drawn may be whatever a record makes of it; here are its parameters.
_DRAWS = """
RandomGammaGrad StatelessMultinomial StatelessRandomGammaV2 StatelessRandomGammaV3
StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomNormal
StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformFullInt
StatelessRandomUniformFullIntV2 StatelessRandomUniformV2 StatelessShuffle StatelessTruncatedNormal
StatelessTruncatedNormalV2
"""
# Of lists of tensors, variables, tables and what a program prints: tensors that are kept and read.
_KEPT = """
AssignAddVariableOp AssignSubVariableOp AssignVariableOp AsString DisableCopyOnRead EmptyTensorList
LookupTableFindV2 LookupTableSizeV2 OptionalFromValue OptionalGetValue OptionalHasValue Print
PrintV2 ReadVariableOp StringFormat TensorArrayCloseV3 TensorArrayConcatV3 TensorArrayGatherV3
TensorArrayGradV3 TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3 TensorArraySplitV3
TensorArrayWriteV3 TensorListConcatLists TensorListConcatV2 TensorListElementShape
TensorListFromTensor TensorListGather TensorListLength TensorListPopBack TensorListPushBack
TensorListPushBackBatch TensorListReserve TensorListResize TensorListScatterIntoExistingList
TensorListScatterV2 TensorListSplit TensorListStack VariableShape VarIsInitializedOp
"""
TOTAL = frozenset(
    (
        _ELEMENTWISE
        + _REDUCTIONS
        + _ARRAYS
        + _LINEAR_ALGEBRA
        + _NETWORKS
        + _NETWORKS_ON_GPU
        + _SIGNALS
        + _QUANTIZATION
        + _TEXTS
        + _DRAWS
        + _KEPT
    ).split()
)
