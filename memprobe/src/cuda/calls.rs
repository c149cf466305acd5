//! Catalog of CUDA's functions that manage memory: those of libcudart (CUDA Runtime API,
//! `cuda_runtime_api.h`) and of libcuda (CUDA Driver API, `cuda.h`), CUDA 11.0 to 13.5.
//!
//! Each returns an `int` that is 0 for success. The tracepoints of PyTorch's caching allocator, which
//! report blocks, are listed beside them.
//!
//! Left out, because their arguments do not give the resulting amount of memory of this process:
//! - `cuImportExternalMemory`: the memory is another owner's, and has no size in the call;
//! - `cuMulticastCreate` and its bindings: a multicast object has no memory of its own;
//! - `cuGraphAddMemAllocNode`: a launch of the graph backs its memory;
//! - `cuMemPoolCreate`, `cuMemPoolTrimTo`: how much a pool keeps is not in the calls;
//! - `cuModuleLoad…`, `cuLibraryLoad…`: the size of code on the device is not in the calls;
//! - `nvshmem_malloc`, `ncclMemAlloc`: both libraries get their memory by the functions below.

use crate::event::CudaMemoryKind;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Api {
    Runtime,
    Driver,
    Tracepoint,
}

impl Api {
    /// Start of the file names of its library.
    pub const fn library(self) -> &'static str {
        match self {
            Self::Runtime => "libcudart",
            Self::Driver => "libcuda.so",
            Self::Tracepoint => "libc10_cuda.so",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name in the documentation; of a tracepoint with its provider, as other tools write it.
    pub name: &'static str,
    pub api: Api,
    pub symbol: &'static str,
    pub effect: Effect,
}

/// Effect of a successful call. Arguments are counted from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Gives out memory. The name of the memory is written to where argument 0 points.
    Allocates {
        space: CudaMemoryKind,
        size: Size,
        lifetime: Lifetime,
    },
    /// Takes memory back that argument 0 names.
    Frees(Named),
    /// `cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned Flags)`: maps memory of another process.
    /// The handle is 64 opaque bytes; the size is not in the call.
    OpensImported,
    /// `cuIpcCloseMemHandle(CUdeviceptr dptr)`: ends one opening.
    ClosesImported,
    /// Pins memory of the process that is there already: argument 0 is its address, 1 its size.
    Registers,
    /// `cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, …)`.
    CreatesPhysical,
    /// `cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)`.
    RetainsPhysical,
    /// `cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, …)`: another reference, to
    /// memory of this process or, mostly, of another.
    ImportsPhysical,
    /// `cuMemRelease(CUmemGenericAllocationHandle handle)`.
    ReleasesPhysical,
    /// `cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, …)`.
    Maps,
    /// `cuMemUnmap(CUdeviceptr ptr, size_t size)`.
    Unmaps,
    /// `cuMemAddressFree(CUdeviceptr ptr, size_t size)`.
    FreesAddresses,
    /// Makes the device of argument 0 the calling thread's.
    SetsDevice,
    /// Makes the context of argument 0 the calling thread's.
    SetsContext,
    /// Puts the context of argument 0 on the calling thread's stack of contexts.
    PushesContext,
    /// Takes one off that stack, and writes it to where argument 0 points, which may be null.
    PopsContext,
    /// Writes a new context of the device of that argument to where argument 0 points, and puts it
    /// on the calling thread's stack.
    CreatesContext { device: u8 },
    /// Destroys the context of argument 0, and what was allocated in it.
    DestroysContext,
    /// `cuCtxAttach(CUcontext *pctx, …)`: another use of the current context, which is written there.
    AttachesContext,
    /// `cuCtxDetach(CUcontext ctx)`: destroys the context with its last use.
    DetachesContext,
    /// `cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev, …)`: a part of the
    /// device's primary context, which it retains.
    CreatesGreen,
    /// `cuCtxFromGreenCtx(CUcontext *pContext, CUgreenCtx hCtx)`.
    ConvertsGreen,
    /// `cuGreenCtxDestroy(CUgreenCtx hCtx)`: releases the primary context.
    DestroysGreen,
    /// `cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)`.
    RetainsPrimary,
    /// `cuDevicePrimaryCtxRelease(CUdevice dev)`: destroys the context with the last reference.
    ReleasesPrimary,
    /// Destroys the primary context of the device of argument 0.
    ResetsPrimary,
    /// Destroys the primary context of the thread's device.
    ResetsDevice,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    Argument,
    /// The pitch, written to where argument 1 points, times the rows: argument 3.
    Pitched,
    /// `cudaPitchedPtr` behind argument 0: its second word is the pitch; the extent is on the
    /// stack: width, height, depth.
    PitchedExtent,
    /// `cudaChannelFormatDesc` behind argument 1; argument 2 is the width, 3 the height, 4 the flags.
    RuntimeArray,
    /// `cudaChannelFormatDesc` behind argument 1, the extent on the stack; argument 2 is the flags.
    RuntimeArray3d,
    /// [`Self::RuntimeArray3d`] with the number of levels in argument 2 and the flags in 3.
    RuntimeMipmapped,
    /// `CUDA_ARRAY_DESCRIPTOR` behind argument 1.
    DriverArray,
    /// `CUDA_ARRAY3D_DESCRIPTOR` behind argument 1.
    DriverArray3d,
    /// [`Self::DriverArray3d`] with the number of levels in argument 2.
    DriverMipmapped,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// Until the end of the context in which it was allocated.
    Context,
    /// Until the end of the process: "cuCtxDestroy() will not destroy memory allocations by cuMemCreate(),
    /// cuMemAllocAsync() and cuMemAllocFromPoolAsync()" (CUDA Driver API, and alike for
    /// `cudaDeviceReset` in the Runtime API).
    Process,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Named {
    Address,
    /// A `cudaArray_t` or `CUarray`, which are the same; or a `cudaMipmappedArray_t` or `CUmipmappedArray`,
    /// which are the same too. All are objects of the driver: no two live ones have the same number.
    Array,
}

impl Effect {
    pub const fn wants_stack(self) -> bool {
        matches!(
            self,
            Self::Allocates { .. }
                | Self::Registers
                | Self::OpensImported
                | Self::CreatesPhysical
                | Self::Maps
                | Self::CreatesContext { .. }
                | Self::RetainsPrimary
        )
    }

    /// The argument that points to a description of what is wanted, and how many bytes of it are of
    /// interest (`driver_types.h`, `cuda.h`).
    pub const fn description(self) -> Option<(u8, u8)> {
        match self {
            Self::Allocates { size, .. } => match size {
                // int x, y, z, w; enum f
                Size::RuntimeArray | Size::RuntimeArray3d | Size::RuntimeMipmapped => Some((1, 20)),
                // size_t Width, Height; enum Format; unsigned NumChannels
                Size::DriverArray => Some((1, 24)),
                // size_t Width, Height, Depth; enum Format; unsigned NumChannels, Flags
                Size::DriverArray3d | Size::DriverMipmapped => Some((1, 36)),
                Size::Argument | Size::Pitched | Size::PitchedExtent => None,
            },
            // enum type, requestedHandleTypes; struct { enum type; int id } location
            Self::CreatesPhysical => Some((2, 16)),
            _ => None,
        }
    }
}

const fn runtime(name: &'static str, effect: Effect) -> Function {
    function_of(Api::Runtime, name, effect)
}

const fn driver(name: &'static str, effect: Effect) -> Function {
    function_of(Api::Driver, name, effect)
}

/// A tracepoint of PyTorch's, which is no symbol.
const fn tracepoint(name: &'static str, effect: Effect) -> Function {
    function_of(Api::Tracepoint, name, effect)
}

const fn function_of(api: Api, name: &'static str, effect: Effect) -> Function {
    Function {
        name,
        api,
        symbol: name,
        effect,
    }
}

/// The form for programs built with a default stream for each thread: `symbol` ends in `_ptsz`.
const fn per_thread(function: Function) -> Function {
    let symbol = function.symbol;
    let (name, _) = symbol.split_at(symbol.len() - "_ptsz".len());
    Function { name, ..function }
}

const fn allocates(space: CudaMemoryKind, size: Size) -> Effect {
    Effect::Allocates {
        space,
        size,
        lifetime: Lifetime::Context,
    }
}

const fn device(size: Size) -> Effect {
    allocates(CudaMemoryKind::Device, size)
}

const fn array(size: Size) -> Effect {
    allocates(CudaMemoryKind::Array, size)
}

const DEVICE: Effect = device(Size::Argument);
const FROM_A_POOL: Effect = Effect::Allocates {
    space: CudaMemoryKind::Pool,
    size: Size::Argument,
    lifetime: Lifetime::Process,
};
const MANAGED: Effect = allocates(CudaMemoryKind::Managed, Size::Argument);
const PINNED: Effect = allocates(CudaMemoryKind::Pinned, Size::Argument);
const FREES: Effect = Effect::Frees(Named::Address);
const FREES_ARRAY: Effect = Effect::Frees(Named::Array);

/// Every function that is probed. A recording has their names, a record of the kernel their position here.
pub const FUNCTIONS: &[Function] = &[
    runtime("cudaMalloc", DEVICE),
    runtime("cudaFree", FREES),
    runtime("cudaMallocAsync", FROM_A_POOL),
    per_thread(runtime("cudaMallocAsync_ptsz", FROM_A_POOL)),
    runtime("cudaMallocFromPoolAsync", FROM_A_POOL),
    per_thread(runtime("cudaMallocFromPoolAsync_ptsz", FROM_A_POOL)),
    runtime("cudaFreeAsync", FREES),
    per_thread(runtime("cudaFreeAsync_ptsz", FREES)),
    runtime("cudaMallocManaged", MANAGED),
    runtime("cudaMallocPitch", device(Size::Pitched)),
    runtime("cudaMalloc3D", device(Size::PitchedExtent)),
    runtime("cudaMallocArray", array(Size::RuntimeArray)),
    runtime("cudaMalloc3DArray", array(Size::RuntimeArray3d)),
    runtime("cudaFreeArray", FREES_ARRAY),
    runtime("cudaMallocMipmappedArray", array(Size::RuntimeMipmapped)),
    runtime("cudaFreeMipmappedArray", FREES_ARRAY),
    runtime("cudaHostAlloc", PINNED),
    runtime("cudaMallocHost", PINNED),
    runtime("cudaFreeHost", FREES),
    runtime("cudaHostRegister", Effect::Registers),
    runtime("cudaHostUnregister", FREES),
    runtime("cudaIpcOpenMemHandle", Effect::OpensImported),
    runtime("cudaIpcCloseMemHandle", Effect::ClosesImported),
    runtime("cudaSetDevice", Effect::SetsDevice),
    runtime("cudaDeviceReset", Effect::ResetsDevice),
    driver("cuMemAlloc_v2", DEVICE),
    driver("cuMemFree_v2", FREES),
    driver("cuMemAllocAsync", FROM_A_POOL),
    per_thread(driver("cuMemAllocAsync_ptsz", FROM_A_POOL)),
    driver("cuMemAllocFromPoolAsync", FROM_A_POOL),
    per_thread(driver("cuMemAllocFromPoolAsync_ptsz", FROM_A_POOL)),
    driver("cuMemFreeAsync", FREES),
    per_thread(driver("cuMemFreeAsync_ptsz", FREES)),
    driver("cuMemAllocManaged", MANAGED),
    driver("cuMemAllocPitch_v2", device(Size::Pitched)),
    driver("cuArrayCreate_v2", array(Size::DriverArray)),
    driver("cuArray3DCreate_v2", array(Size::DriverArray3d)),
    driver("cuArrayDestroy", FREES_ARRAY),
    driver("cuMipmappedArrayCreate", array(Size::DriverMipmapped)),
    driver("cuMipmappedArrayDestroy", FREES_ARRAY),
    driver("cuMemHostAlloc", PINNED),
    driver("cuMemAllocHost_v2", PINNED),
    driver("cuMemFreeHost", FREES),
    driver("cuMemHostRegister_v2", Effect::Registers),
    driver("cuMemHostUnregister", FREES),
    driver("cuIpcOpenMemHandle", Effect::OpensImported),
    driver("cuIpcOpenMemHandle_v2", Effect::OpensImported),
    driver("cuIpcCloseMemHandle", Effect::ClosesImported),
    driver("cuMemCreate", Effect::CreatesPhysical),
    driver("cuMemRetainAllocationHandle", Effect::RetainsPhysical),
    driver("cuMemImportFromShareableHandle", Effect::ImportsPhysical),
    driver("cuMemRelease", Effect::ReleasesPhysical),
    driver("cuMemMap", Effect::Maps),
    driver("cuMemUnmap", Effect::Unmaps),
    driver("cuMemAddressFree", Effect::FreesAddresses),
    driver("cuCtxCreate", Effect::CreatesContext { device: 2 }),
    driver("cuCtxCreate_v2", Effect::CreatesContext { device: 2 }),
    driver("cuCtxCreate_v3", Effect::CreatesContext { device: 4 }),
    driver("cuCtxCreate_v4", Effect::CreatesContext { device: 3 }),
    driver("cuCtxDestroy", Effect::DestroysContext),
    driver("cuCtxDestroy_v2", Effect::DestroysContext),
    driver("cuCtxAttach", Effect::AttachesContext),
    driver("cuCtxDetach", Effect::DetachesContext),
    driver("cuCtxSetCurrent", Effect::SetsContext),
    driver("cuCtxPushCurrent", Effect::PushesContext),
    driver("cuCtxPushCurrent_v2", Effect::PushesContext),
    driver("cuCtxPopCurrent", Effect::PopsContext),
    driver("cuCtxPopCurrent_v2", Effect::PopsContext),
    driver("cuGreenCtxCreate", Effect::CreatesGreen),
    driver("cuCtxFromGreenCtx", Effect::ConvertsGreen),
    driver("cuGreenCtxDestroy", Effect::DestroysGreen),
    driver("cuDevicePrimaryCtxRetain", Effect::RetainsPrimary),
    // The runtime asks `cuGetProcAddress` for the first forms of these two, with version 7000.
    driver("cuDevicePrimaryCtxRelease", Effect::ReleasesPrimary),
    driver("cuDevicePrimaryCtxRelease_v2", Effect::ReleasesPrimary),
    driver("cuDevicePrimaryCtxReset", Effect::ResetsPrimary),
    driver("cuDevicePrimaryCtxReset_v2", Effect::ResetsPrimary),
    // Argument 2 is the device.
    tracepoint("pytorch:malloc", DEVICE),
    tracepoint("pytorch:free", FREES),
];

pub fn tracepoints() -> impl Iterator<Item = (u8, &'static Function)> {
    (0..)
        .zip(FUNCTIONS)
        .filter(|(_, function)| function.api == Api::Tracepoint)
}

/// The function that the kernel's records name by `number`.
pub fn function(number: u8) -> Option<&'static Function> {
    FUNCTIONS.get(usize::from(number))
}

/// True for the name of a tracepoint, which reports blocks of the caching allocator.
pub fn is_tracepoint(name: &str) -> bool {
    function_named(name).is_some_and(|function| function.api == Api::Tracepoint)
}

/// Returns a function that gives out memory of a kind, of an API if that has one.
pub fn allocating(api: Api, space: CudaMemoryKind) -> Option<&'static Function> {
    let gives = |function: &&Function| match function.effect {
        Effect::Allocates { space: given, .. } => given == space,
        Effect::Registers => space == CudaMemoryKind::Registered,
        Effect::OpensImported => space == CudaMemoryKind::Imported,
        Effect::CreatesPhysical => space == CudaMemoryKind::Virtual,
        _ => false,
    };
    let mut all = FUNCTIONS.iter().filter(gives);
    all.clone()
        .find(|function| function.api == api)
        .or_else(|| all.next())
}

pub fn function_named(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_number_and_every_symbol_is_there_once() {
        assert!(u8::try_from(FUNCTIONS.len()).is_ok());
        let mut symbols: Vec<_> = FUNCTIONS.iter().map(|function| function.symbol).collect();
        symbols.sort_unstable();
        symbols.dedup();
        assert_eq!(symbols.len(), FUNCTIONS.len());
        assert!(FUNCTIONS.iter().all(|function| !function.name.is_empty()));
    }

    #[test]
    fn a_description_fits_into_its_record() {
        let capacity = size_of_val(&memprobe_common::CudaRecord::default().description);
        for function in FUNCTIONS {
            if let Some((argument, bytes)) = function.effect.description() {
                assert!(argument < 3, "{}", function.name);
                assert!(usize::from(bytes) <= capacity, "{}", function.name);
            }
        }
    }

    #[test]
    fn a_tracepoint_is_known_by_its_name() {
        assert!(is_tracepoint("pytorch:free"));
        assert!(!is_tracepoint("cudaFree"));
        assert_eq!(tracepoints().count(), 2);
    }

    #[test]
    fn a_function_is_found_by_number_and_by_name() {
        assert_eq!(
            function(0).map(|function| function.name),
            Some("cudaMalloc")
        );
        assert_eq!(function(255), None);
        assert_eq!(
            function_named("cuMemMap").map(|function| function.effect),
            Some(Effect::Maps)
        );
        assert_eq!(function_named("malloc"), None);
    }
}
