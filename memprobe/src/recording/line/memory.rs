//! Lines of memory events: blocks, segments, CUDA calls, and the ends of their slices.

use std::borrow::Cow;

use serde::Deserialize;

use super::{LineRecord, first, time};
use crate::cuda::calls::function_named;
use crate::event::tensors::DType;
use crate::event::{
    Action, Address, BlockPurpose, Bytes, CudaCall, DeviceIndex, MemoryEvent, Purpose, PurposeId,
    StackId, TensorSpec, Tgid, Tid, TimeNs, Totals,
};
use crate::recording::{MAX_DIMENSIONS, MAX_PURPOSE, hex};

/// Kind of line that carries a memory event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryLine {
    /// The beginning of a slice, or an instant.
    Event(Action),
    EndOfSlice(Action),
}

impl MemoryLine {
    /// Returns the kind of a line by its `ph` and `cat`; `None` if it carries no memory event.
    pub(super) fn of(phase: &str, category: &str) -> Option<Self> {
        Some(match (phase, category) {
            ("b" | "i", "alloc" | "cpu") => Self::Event(Action::Alloc),
            ("e", "alloc" | "cpu") => Self::EndOfSlice(Action::Free),
            ("i", "free" | "cpu_free") => Self::Event(Action::Free),
            ("b" | "i", "cuda") => Self::Event(Action::CudaAlloc),
            ("e", "cuda") => Self::EndOfSlice(Action::CudaFree),
            ("i", "cuda_free") => Self::Event(Action::CudaFree),
            ("b" | "i", "segment") => Self::Event(Action::SegmentAlloc),
            ("e", "segment") => Self::EndOfSlice(Action::SegmentFree),
            ("i", "segment_free") => Self::Event(Action::SegmentFree),
            ("i", "segment_sleep") => Self::Event(Action::SegmentSleep),
            ("i", "segment_wake") => Self::Event(Action::SegmentWake),
            ("i", "oom") => Self::Event(Action::OutOfMemory),
            ("i", "cuda_oom") => Self::Event(Action::CudaOutOfMemory),
            _ => return None,
        })
    }
}

/// Process, thread and time of a line.
#[derive(Clone, Copy)]
pub(super) struct LineHead<'a> {
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// The text of `ts`.
    pub(super) ts: Option<&'a str>,
}

impl LineHead<'_> {
    pub(super) fn time(&self, start: TimeNs) -> Result<TimeNs, String> {
        let ts = self.ts.ok_or("no `ts`")?;
        time(ts, start).ok_or_else(|| format!("`ts` is no time: {:?}", first(ts)))
    }
}

/// Numbers of a memory event, and what its memory is for.
#[derive(Default, Deserialize)]
pub(super) struct MemoryArgs<'a> {
    #[serde(borrow)]
    pub(super) addr: Cow<'a, str>,
    pub(super) size: u64,
    pub(super) device: Option<DeviceIndex>,
    pub(super) allocated: Option<u64>,
    pub(super) reserved: Option<u64>,
    pub(super) stack_id: Option<u32>,
    pub(super) function: Option<Cow<'a, str>>,
    pub(super) space: Option<Cow<'a, str>>,
    pub(super) shape: Option<Vec<u64>>,
    #[serde(default)]
    pub(super) more_dimensions: u32,
    pub(super) dtype: Option<Cow<'a, str>>,
    pub(super) requested: Option<u64>,
    pub(super) tensor: Option<bool>,
    pub(super) inferred: Option<Inferred<'a>>,
    #[serde(default, alias = "held")]
    pub(super) live_at_attach: bool,
}

#[derive(Deserialize)]
pub(super) struct Inferred<'a> {
    #[serde(rename = "purpose", alias = "use")]
    pub(super) what: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) function: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) library: Cow<'a, str>,
}

#[derive(Deserialize)]
pub(super) struct EndOfSlice<'a> {
    #[serde(borrow)]
    pub(super) free: Option<MemoryArgs<'a>>,
    #[serde(default)]
    pub(super) unseen_free: bool,
    #[serde(default)]
    pub(super) live_at_end: bool,
}

impl EndOfSlice<'_> {
    /// Returns the free at the end of a slice; [`LineRecord::Other`] if the end is drawn only.
    pub(super) fn record<'r>(
        &self,
        head: &LineHead<'_>,
        action: Action,
        start: TimeNs,
    ) -> Result<LineRecord<'r>, String> {
        match self {
            Self {
                free: Some(free),
                unseen_free: false,
                live_at_end: false,
            } => Ok(LineRecord::Memory(free.event(head, action, start)?, None)),
            Self {
                free: None,
                unseen_free,
                live_at_end,
            } if unseen_free != live_at_end => Ok(LineRecord::Other),
            _ => Err("the end of a slice without `free`".to_owned()),
        }
    }
}

impl MemoryArgs<'_> {
    /// Returns the event, with the purpose of its memory.
    pub(super) fn record<'r>(
        &self,
        head: &LineHead<'_>,
        action: Action,
        start: TimeNs,
    ) -> Result<LineRecord<'r>, String> {
        let event = self.event(head, action, start)?;
        let is = match shape(self)? {
            Some(shape) => Some(BlockPurpose::Tensor(shape)),
            None => purpose(self)?.map(BlockPurpose::Other),
        };
        Ok(LineRecord::Memory(event, is))
    }

    fn event(
        &self,
        head: &LineHead<'_>,
        action: Action,
        start: TimeNs,
    ) -> Result<MemoryEvent, String> {
        let totals = match (self.allocated, self.reserved) {
            (Some(allocated), Some(reserved)) => Some(Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(reserved),
            }),
            (None, None) => None,
            _ => return Err("`allocated` without `reserved`".to_owned()),
        };
        let action = match (action, self.live_at_attach) {
            (Action::Alloc, true) => Action::Held,
            (_, true) => return Err("`live_at_attach` at the end of a slice".to_owned()),
            (action, false) => action,
        };
        Ok(MemoryEvent {
            time: head.time(start)?,
            tgid: Tgid(head.pid),
            tid: Tid(head.tid),
            action,
            addr: hex(&self.addr)
                .map(Address)
                .ok_or_else(|| format!("`addr` is no address: {:?}", first(&self.addr)))?,
            size: Bytes(self.size),
            device: self.device,
            totals,
            stack: self.stack_id.map_or(StackId::NONE, StackId),
            shape: match self.tensor {
                Some(false) => PurposeId::NO_TENSOR,
                _ => PurposeId::NONE,
            },
            call: call(self)?,
        })
    }
}

/// Parses a type of elements by its name, or by its number: `dtype 99`.
pub(in crate::recording) fn dtype_named(text: &str) -> Option<DType> {
    let number = || text.strip_prefix("dtype ")?.parse().ok().map(DType);
    DType::parse(text).or_else(number)
}

fn shape(args: &MemoryArgs<'_>) -> Result<Option<TensorSpec>, String> {
    let (sizes, dtype) = match (&args.shape, &args.dtype) {
        (Some(sizes), Some(dtype)) => (sizes, dtype),
        (None, None) => return Ok(None),
        _ => return Err("`shape` without `dtype`".to_owned()),
    };
    if sizes.len() > MAX_DIMENSIONS {
        return Err(format!("a tensor of {} dimensions", sizes.len()));
    }
    let dtype = dtype_named(dtype).ok_or_else(|| format!("no `dtype`: {:?}", first(dtype)))?;
    Ok(Some(TensorSpec {
        sizes: sizes.clone(),
        more: args.more_dimensions,
        dtype,
        requested: args.requested.map(Bytes),
    }))
}

/// Returns the purpose that the event names for a block without a tensor, if any.
fn purpose(args: &MemoryArgs<'_>) -> Result<Option<Purpose>, String> {
    let Some(inferred) = &args.inferred else {
        return Ok(None);
    };
    if args.tensor != Some(false) {
        return Err("`inferred` where there may be a tensor".to_owned());
    }
    let texts = [
        inferred.what.as_deref().unwrap_or_default(),
        &inferred.function,
        &inferred.library,
    ];
    if let Some(long) = texts.iter().find(|text| text.len() > MAX_PURPOSE) {
        return Err(format!("an `inferred` text of {} bytes", long.len()));
    }
    Ok(Some(Purpose {
        what: inferred.what.as_deref().map(Into::into),
        function: (*inferred.function).into(),
        library: (*inferred.library).into(),
    }))
}

fn call(args: &MemoryArgs<'_>) -> Result<Option<CudaCall>, String> {
    let (function, space) = match (&args.function, &args.space) {
        (Some(function), Some(space)) => (function, space),
        (None, None) => return Ok(None),
        _ => return Err("`function` without `space`".to_owned()),
    };
    let known = function_named(function)
        .ok_or_else(|| format!("no function of CUDA: {:?}", first(function)))?;
    let unknown = |_| format!("no `space`: {:?}", first(space));
    Ok(Some(CudaCall {
        function: known.name,
        space: space.parse().map_err(unknown)?,
    }))
}
