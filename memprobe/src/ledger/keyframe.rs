//! Keyframes: the state of a ledger as plain data. A ledger that begins with one goes on as if it had seen every event.
//!
//! Timelines, rates and growth are not part of it: they begin anew. Sums that follow from the live blocks are left out
//! too, so that a keyframe cannot contradict itself.

use std::collections::BTreeMap;
use std::sync::Arc;

pub use super::agreement::Agreement;
pub use super::caps::Refused;
pub use super::driver_memory::{DriverMemories, DriverMemoryState};
pub use super::segment_memory::SegmentMemory;
use super::snapshot::{BudgetState, Health, SoftwareLayer};
use super::{BlockStore, CudaLedger, Dense as _, DeviceLedger, Ledger, StackRef};
use crate::event::{
    Address, BlockLabels, BlockPurpose, Bytes, CudaMemoryKind, DeviceIndex, Losses, PurposeId,
    SegmentReading, Stack, StackId, Target, Tid, TimeNs, Totals,
};

/// State of a [`Ledger`] between two events.
#[derive(Clone, Debug, Default)]
pub struct LedgerKeyframe {
    pub started: TimeNs,
    pub last_event: Option<TimeNs>,
    /// Memory events before this moment.
    pub events: u64,
    /// Events that the ledger could not use.
    pub malformed: u64,
    pub losses: Losses,
    pub agreement: Agreement,
    pub budget: Option<BudgetState>,
    pub unread_at_attach: Option<Arc<str>>,
    pub refused: Refused,
    /// True if any of the refused were stacks.
    pub stacks_refused: bool,
    /// Stacks in the order of their definition. Their numbers in the keyframe begin with 1; 0 is an unknown stack.
    pub stacks: Vec<Arc<Stack>>,
    /// Stacks that the IDs of the stream mean now.
    pub ids: Vec<(StackId, u32)>,
    pub purposes: Vec<(PurposeId, Arc<BlockPurpose>)>,
    pub threads: Vec<(Tid, Arc<str>)>,
    pub devices: Vec<DeviceKeyframe>,
    pub cuda: CudaKeyframe,
    /// Last reading of the allocator's segments.
    pub segments: Option<Arc<SegmentReading>>,
    pub segment_memory: Vec<SegmentMemoryKeyframe>,
    /// Last answers of the driver.
    pub driver: DriverMemories,
    /// Reserved bytes by device.
    pub reserved: Vec<(DeviceIndex, Bytes)>,
    /// Labels of live blocks from before attach.
    pub baseline_labels: Option<Arc<BlockLabels>>,
    /// Latest labels of blocks that are live since. The ledger has none: its caller keeps them.
    pub labels: Option<Arc<BlockLabels>>,
}

#[derive(Clone, Debug)]
pub struct DeviceKeyframe {
    pub index: DeviceIndex,
    pub totals: Totals,
    pub peak: Totals,
    /// Bytes from before attach: at attach, and those whose blocks are unknown now.
    pub found: u64,
    pub unknown: u64,
    /// Frees since attach of blocks that were unknown.
    pub unseen_frees: u64,
    pub unread: Option<Arc<str>>,
    /// True until the first event.
    pub is_as_found: bool,
    pub ooms: u64,
    pub call_sites: CallSitesKeyframe,
    /// Live blocks by address.
    pub blocks: Vec<BlockKeyframe>,
}

/// Memory of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMemoryKeyframe {
    pub addr: Address,
    pub size: Bytes,
    pub device: Option<DeviceIndex>,
    pub kind: CudaMemoryKind,
    pub is_asleep: bool,
    /// Number of the stack.
    pub stack: u32,
}

impl SegmentMemoryKeyframe {
    fn of(memory: &SegmentMemory) -> Self {
        Self {
            addr: memory.addr,
            size: memory.size,
            device: memory.device,
            kind: memory.kind,
            is_asleep: memory.is_asleep,
            stack: u32::try_from(memory.stack.index()).unwrap_or_default(),
        }
    }
}

/// Live block of PyTorch's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKeyframe {
    pub addr: Address,
    pub size: Bytes,
    /// Number of the stack.
    pub stack: u32,
    pub purpose: PurposeId,
    /// Place of its call site; `None` if it was live at attach.
    pub call_site: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct CallSitesKeyframe {
    /// In the order of their first allocation.
    pub call_sites: Vec<CallSiteKeyframe>,
    /// Peaks of the lines in both groupings, in the order of their first allocation.
    pub line_peaks: [Vec<u64>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSiteKeyframe {
    pub key: CallSiteKey,
    pub counts: TallyKeyframe,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallSiteKey {
    /// Number of the stack.
    Stack(u32),
    /// Allocations of a thread without a stack.
    Thread(Arc<str>),
    /// Everything beyond the caps.
    Overflow,
}

/// Counts that do not follow from the live blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TallyKeyframe {
    pub peak: u64,
    pub allocs: u64,
    pub alloc_bytes: u64,
}

/// CUDA memory outside the caching allocator.
#[derive(Clone, Debug, Default)]
pub struct CudaKeyframe {
    pub layer: SoftwareLayer,
    /// Most live bytes of each kind of memory.
    pub peaks: BTreeMap<CudaMemoryKind, u64>,
    pub groups: Vec<CudaGroupKeyframe>,
    /// Devices in the view that treats CUDA's calls as the allocator; without blocks.
    pub devices: Vec<DeviceKeyframe>,
    pub live: Vec<CudaMemoryKeyframe>,
}

#[derive(Clone, Debug)]
pub struct CudaGroupKeyframe {
    pub library: Arc<str>,
    pub space: CudaMemoryKind,
    pub device: Option<DeviceIndex>,
    pub counts: TallyKeyframe,
    pub call_sites: CallSitesKeyframe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaMemoryKeyframe {
    pub name: CudaName,
    pub size: Bytes,
    /// Place of its group, and of its call site in it.
    pub group: u32,
    pub call_site: u32,
    /// Device, and place of the call site on it.
    pub on_device: Option<(DeviceIndex, u32)>,
}

/// Key of live memory. Addresses, arrays and handles may share the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CudaName {
    Address(u64),
    Array(u64),
    Handle(u64),
}

impl Ledger {
    /// Returns the state between two events.
    pub fn keyframe(&self) -> LedgerKeyframe {
        let definitions = &self.store.definitions;
        let mut devices: Vec<DeviceKeyframe> =
            self.devices.values().map(DeviceLedger::keyframe).collect();
        for (_, block) in self.store.live() {
            let found = devices.binary_search_by_key(&block.device, |device| device.index);
            if let Ok(at) = found {
                devices[at].blocks.push(block.keyframe());
            }
        }
        LedgerKeyframe {
            started: self.started,
            last_event: self.last_event,
            events: self.health.events,
            malformed: self.malformed,
            losses: self.health.losses,
            agreement: self.agreement,
            budget: self.health.budget,
            unread_at_attach: self.health.unread_at_attach.clone(),
            refused: self.store.budget.refused,
            stacks_refused: definitions.stacks_refused,
            stacks: self.stacks().map(|(_, stack)| Arc::clone(stack)).collect(),
            ids: definitions.ids().collect(),
            purposes: definitions.purposes.iter().collect(),
            threads: definitions.threads().collect(),
            devices,
            cuda: self.cuda.keyframe(),
            segments: self.segments.clone(),
            segment_memory: self
                .segment_memory
                .iter()
                .map(SegmentMemoryKeyframe::of)
                .collect(),
            driver: self.driver.clone(),
            reserved: self
                .reserved
                .iter()
                .map(|(device, bytes)| (*device, *bytes))
                .collect(),
            baseline_labels: self.baseline_labels().map(Arc::new),
            labels: None,
        }
    }

    /// Labels of live blocks from before attach, and all tags.
    pub(super) fn baseline_labels(&self) -> Option<BlockLabels> {
        let labels = self.baseline.keyframe(&self.store)?;
        Some(BlockLabels {
            tags: self.segment_memory.tags(),
            ..labels
        })
    }

    /// Begins with the state of a keyframe, which may come from a hostile file. An error describes the fault in a few
    /// words.
    pub fn of_keyframe(target: Target, keyframe: &LedgerKeyframe) -> Result<Self, &'static str> {
        let mut ledger = Self::new(target, keyframe.started);
        let store = &mut ledger.store;
        store.define(keyframe)?;
        for device in &keyframe.devices {
            let restored = DeviceLedger::of_keyframe(device, keyframe, store)?;
            if ledger.devices.insert(device.index, restored).is_some() {
                return Err("a device stands twice in a keyframe");
            }
        }
        ledger.cuda = CudaLedger::of_keyframe(keyframe, store)?;
        store.budget.refused = keyframe.refused;
        store.definitions.stacks_refused = keyframe.stacks_refused;
        ledger.last_event = keyframe.last_event;
        ledger.malformed = keyframe.malformed;
        ledger.agreement = keyframe.agreement;
        if let Some(labels) = &keyframe.baseline_labels {
            ledger.baseline.label(labels, &ledger.store);
        }
        ledger.segments.clone_from(&keyframe.segments);
        for memory in &keyframe.segment_memory {
            let stack = ledger.store.definitions.numbered(memory.stack)?;
            ledger.segment_memory.insert(SegmentMemory {
                addr: memory.addr,
                size: memory.size,
                device: memory.device,
                kind: memory.kind,
                is_asleep: memory.is_asleep,
                stack,
            });
        }
        if let Some(labels) = &keyframe.baseline_labels {
            ledger.segment_memory.tag(&labels.tags);
        }
        ledger.driver.clone_from(&keyframe.driver);
        ledger.reserved = keyframe.reserved.iter().copied().collect();
        ledger.health = Health {
            events: keyframe.events,
            losses: keyframe.losses,
            budget: keyframe.budget,
            unread_at_attach: keyframe.unread_at_attach.clone(),
            ..Health::default()
        };
        Ok(ledger)
    }
}

impl BlockStore {
    /// Defines the stacks, purposes and threads of a keyframe.
    fn define(&mut self, keyframe: &LedgerKeyframe) -> Result<(), &'static str> {
        let definitions = &mut self.definitions;
        for (at, stack) in keyframe.stacks.iter().enumerate() {
            let expected = StackRef::from_index(at + 1);
            if definitions.intern(stack) != Some(expected) {
                return Err("a keyframe with a stack twice, or with too many");
            }
        }
        for (id, stack) in &keyframe.ids {
            let stack = self.definitions.numbered(*stack)?;
            self.definitions.mean(*id, stack);
        }
        for (id, purpose) in &keyframe.purposes {
            self.definitions.purposes.define(*id, purpose);
        }
        for (tid, name) in &keyframe.threads {
            let refused = &mut self.budget.refused;
            self.definitions.name(*tid, name, refused);
        }
        Ok(())
    }
}
