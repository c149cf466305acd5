//! Takes a [`TensorSnapshot`] of a live process: joins Python's objects, PyTorch's objects, the allocator's
//! blocks and the names that lead to them.

mod contexts;
mod dominators;
mod join;
mod known;
mod linked_tensors;
mod names;
mod reference_paths;
mod retainers;
mod tensor_objects;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use self::known::KnownTensors;
use super::allocator::active::AllocatorVariable;
use super::allocator::segments::{self, SegmentTables};
use super::allocator::tables::{self, AllocatorTables, TablesError};
use super::objects::graph::{self, RawGraph};
use super::objects::{LayoutError, LayoutOrigin, Layouts};
use super::serving::{ServingObjects, TaggedPool};
use crate::event::tensors::TensorSnapshot;
use crate::event::{
    Bytes, DeviceSegments, KvCaches, MAX_TAGS, PoolOwner, PrivateFree, TaggedAllocation, Target,
    Tgid,
};
use crate::process::facts;
use crate::process::maps::Maps;
use crate::process::memory::{ProcessMemory, ReadMemory};
use crate::process::pause::PauseError;
use crate::python::heap::Heap;
use crate::python::heap::capture::{self, Captured, HeapReader, HeapScan, capture};
use crate::python::heap::collector::Broken;
use crate::python::heap::image::Image;
use crate::python::{DetectError, PythonProcess};

pub use crate::python::heap::capture::CaptureMode;
pub use crate::python::heap::progress::{ReadProgress, ReadStage};

/// Most readings of the allocator's segments, which may change meanwhile.
const MAX_SEGMENT_READINGS: usize = 3;

const LIBRARY: &str = "libtorch_python.so";

const INTERRUPTED_ALLOCATOR: &str = "the process stands within an operation of PyTorch's allocator, whose tables do \
                                     not agree there: the block in progress is missing, or counted though it is freed";

/// Reasons why there is no snapshot. Each message ends with the user's next step.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("{0}")]
    Python(#[from] DetectError),
    #[error(
        "it has not loaded PyTorch, so it has no tensors.\nFind the process that trains with `pgrep -af python`, or \
         try again once it has imported torch"
    )]
    NoTorch,
    #[error("{0}")]
    Heap(#[source] capture::CaptureError),
    #[error(
        "{0}.\nWatch the allocator's blocks with `memprobe attach`; please report the version of PyTorch"
    )]
    Torch(#[source] LayoutError),
    /// PyTorch's objects could not be read while the process kept running.
    #[error(
        "its tensors could not be told while it ran on: many were made or freed meanwhile, or PyTorch lays them out \
         as in no version that memprobe knows.\nTry again, or let it stand still for a moment (without --nonblocking)"
    )]
    Torn,
}

impl SnapshotError {
    /// True if the process is ending or has ended.
    pub fn is_of_the_end(&self) -> bool {
        match self {
            Self::Python(error) | Self::Heap(capture::CaptureError::Ended(error)) => {
                error.is_of_the_end()
            }
            Self::Heap(capture::CaptureError::Pause(PauseError::Gone)) => true,
            _ => false,
        }
    }

    /// True if another attempt may succeed: the process was busy, or something else had stopped it.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Heap(capture::CaptureError::Pause(error)) => {
                !matches!(error, PauseError::Gone | PauseError::Denied)
            }
            Self::Heap(error) => matches!(
                error,
                capture::CaptureError::NeverWhole(_) | capture::CaptureError::StandsBroken(_)
            ),
            Self::Torn => true,
            Self::Python(_) | Self::NoTorch | Self::Torch(_) => false,
        }
    }
}

/// Takes a snapshot of every tensor of a process: on CUDA devices, on the CPU, and without memory. In the pausing
/// modes a separate thread stops the process. Missing parts are listed in [`TensorSnapshot::unread`].
pub fn take(
    tgid: Tgid,
    manner: CaptureMode,
    progress: &ReadProgress,
) -> Result<TensorSnapshot, SnapshotError> {
    let maps = Maps::of(tgid).map_err(|error| DetectError::of_access(tgid, error))?;
    let python = PythonProcess::detect_in(tgid, &maps)?;
    if maps.library(LIBRARY).is_none() {
        return Err(SnapshotError::NoTorch);
    }
    let version = facts::torch_version(tgid);
    let variable = AllocatorVariable::find(tgid, &maps).map_err(TablesError::from);
    let reader = TensorReader {
        python: &python,
        version: version.as_deref(),
        variable,
    };
    let captured = capture(&python, manner, progress, &reader);
    let captured = captured.map_err(SnapshotError::Heap)?;
    if let Some(Err(error)) = &captured.more.layouts
        && !captured.moment.objects.tensors.is_empty()
    {
        return Err(match manner {
            CaptureMode::Paused | CaptureMode::AtOnce => SnapshotError::Torch(error.clone()),
            CaptureMode::Running => SnapshotError::Torn,
        });
    }
    let missing_objects = missing_objects(captured.moment.broken);
    let mut unread = unread(&captured);
    unread.extend(captured.result.unread.iter().cloned());
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut snapshot = TensorSnapshot {
        target: Target {
            tgid: Some(tgid),
            command: facts::command_line(tgid),
            python: Some(python.version.to_string()),
            torch: version.clone(),
            ..Target::default()
        },
        taken_ms: since.map_or(0, |since| since.as_millis() as u64),
        moment: captured.moment.at,
        consistency: captured.consistency,
        objects: captured.moment.objects.objects.len() as u64,
        unread,
        limit: captured.more.limit(),
        missing_objects,
        has_more_objects: captured.moment.broken.is_some_and(Broken::is_limit),
        ..captured.result
    };
    let blocks = &mut snapshot.blocks;
    blocks.sort_by_key(|block| (block.device, block.addr));
    if !captured.more.serving.is_empty() {
        snapshot.kv.private_free = private_free(&reader, &snapshot);
    }
    let tagged = &captured.more.tagged_pools;
    if !tagged.is_empty() {
        let most = MAX_TAGS.saturating_sub(snapshot.tags.len());
        let tags = tags_of_pools(&reader, tagged).into_iter().take(most);
        snapshot.tags.extend(tags);
        snapshot.tags.sort_by_key(|tagged| tagged.addr);
    }
    Ok(snapshot)
}

/// Returns the segments that the allocator has by now; `None` if its tables change or cannot be read.
fn segments_now(reader: &TensorReader<'_>) -> Option<Vec<DeviceSegments>> {
    let memory = ProcessMemory::new(reader.python.tgid);
    let variable = reader.variable.as_ref().ok().copied().flatten()?;
    match segments::read(&memory, variable, reader.version).ok()? {
        SegmentTables::Whole(devices) => Some(devices),
        SegmentTables::Changed => None,
    }
}

/// Returns the segments of tagged pools, each with the tag of its pool. A pool has its number for the life of the process,
/// so the segments may be those of a later moment.
fn tags_of_pools(reader: &TensorReader<'_>, pools: &[TaggedPool]) -> Vec<TaggedAllocation> {
    let devices = (0..MAX_SEGMENT_READINGS).find_map(|_| segments_now(reader));
    let devices = devices.unwrap_or_default();
    let segments = devices.iter().flat_map(|device| &device.segments);
    let tags = segments.filter_map(|segment| {
        let PoolOwner::Private { id, .. } = segment.pool.owner else {
            return None;
        };
        let mut known = pools.iter();
        Some(TaggedAllocation {
            addr: segment.addr,
            size: segment.size,
            tag: Arc::clone(&known.find(|known| known.id == id)?.tag),
        })
    });
    tags.collect()
}

/// Returns the free bytes in the private pools of each device. Empty if the allocator has changed since the snapshot, or
/// its segments cannot be read.
fn private_free(reader: &TensorReader<'_>, snapshot: &TensorSnapshot) -> Vec<PrivateFree> {
    let Some(devices) = segments_now(reader) else {
        return Vec::new();
    };
    let is_unchanged = |device: &DeviceSegments| {
        let mut known = snapshot.devices.iter();
        known.any(|known| known.device == device.device && known.totals == device.totals)
    };
    let devices = devices.iter().filter(|device| is_unchanged(device));
    let free = devices.map(|device| {
        let segments = device.segments.iter();
        let private = segments.filter(|segment| segment.pool.owner != PoolOwner::Default);
        let bytes = private.map(|segment| {
            let end = segment.addr.0.saturating_add(segment.size.0);
            let blocks = snapshot.blocks.iter();
            let within = blocks.filter(|block| {
                block.device == device.device && (segment.addr.0..end).contains(&block.addr.0)
            });
            let live = within.fold(0_u64, |sum, block| sum.saturating_add(block.size.0));
            segment.size.0.saturating_sub(live)
        });
        PrivateFree {
            device: device.device,
            bytes: Bytes(bytes.fold(0, u64::saturating_add)),
        }
    });
    free.collect()
}

/// Reader of PyTorch's own memory.
struct TensorReader<'a> {
    python: &'a PythonProcess,
    version: Option<&'a str>,
    variable: Result<Option<AllocatorVariable>, TablesError>,
}

type Allocator = Result<Option<AllocatorTables>, TablesError>;

impl HeapReader for TensorReader<'_> {
    type Tables = Allocator;
    type Found = Found;
    type Known = KnownObjects;
    type Output = TensorSnapshot;

    fn tables(&self, image: &Image<ProcessMemory>) -> Allocator {
        let read = |variable| tables::read(image, variable, self.version);
        self.variable.clone()?.map(read).transpose()
    }

    /// The allocator was stopped in an operation: its blocks do not add up to its total.
    fn disagreement(&self, tables: &Allocator) -> Option<Broken> {
        let tables = tables.as_ref().ok()?.as_ref()?;
        (!tables.is_consistent()).then_some(Broken::Allocating)
    }

    fn read(
        &self,
        image: &Image<ProcessMemory>,
        moment: &mut HeapScan,
        allocator: Allocator,
    ) -> Found {
        let mut found = Found::read(image, moment, self.version, allocator);
        let heap = Heap::with_classes(
            image,
            &self.python.layout,
            std::mem::take(&mut moment.classes),
        );
        found.serving = ServingObjects::find(&heap, &moment.objects.objects);
        moment.cached.extend(found.serving.cache_tensors(&heap));
        let length = |object| found.length(object);
        found.kv = found.serving.pools(&heap, length, moment.mode);
        found.tags = found.serving.tags(&heap);
        found.tagged_pools = found.serving.tagged_pools(&heap);
        moment.classes = heap.into_classes();
        // The process's tensors fit no layout.
        moment.is_torn = matches!(found.layouts, Some(Err(LayoutError::UnknownLayout(_))));
        found
    }

    fn known(&self, image: &Image<ProcessMemory>, found: Found) -> KnownObjects {
        let layouts = found.layouts.and_then(Result::ok);
        KnownObjects {
            tensors: layouts
                .map(|layouts| KnownTensors::of(image, layouts, &found.tensors, &found.reached)),
            empty: found.empty,
            serving: found.serving,
        }
    }

    fn follow(&self, image: &Image<ProcessMemory>, moment: &HeapScan, known: &Self::Known) {
        // What cannot be read is missing in the copy, which is found then.
        if let Ok(Some(variable)) = self.variable {
            tables::follow(image, variable, self.version);
        }
        if !known.serving.is_empty() {
            known.serving.follow(&Heap::of(image, &self.python.layout));
        }
        let mut objects = moment.objects.tensors.clone();
        let mut reached = Vec::new();
        let layouts = match &known.tensors {
            Some(tensors) => {
                // Young objects are always listed again; those on unchanged pages are as they were.
                objects.retain(|&object| !tensors.has(object));
                let changed = image.changed();
                objects.extend(tensors.changed(&changed));
                objects.extend(&known.empty);
                reached = tensors.changed_reached(&changed);
                Ok(tensors.layouts.clone())
            }
            None => Layouts::find(image, self.version, &objects, moment.mode),
        };
        if let Ok(layouts) = layouts {
            Found::default().read_tensors(image, &layouts, &objects, reached);
        }
    }

    fn conclude(
        &self,
        image: &Image<ProcessMemory>,
        moment: &mut HeapScan,
        found: &mut Found,
    ) -> TensorSnapshot {
        join::join(image, self.python, moment, found)
    }

    fn touch(&self, image: &Image<ProcessMemory>, moment: &mut HeapScan, found: &mut Found) {
        join::touch(image, self.python, moment, found);
    }
}

/// Objects of the first scan, for the look at the paused process.
struct KnownObjects {
    /// `None` if the layouts of tensors are unknown.
    tensors: Option<KnownTensors>,
    /// Tensor objects that had no `TensorImpl`.
    empty: Vec<u64>,
    serving: ServingObjects,
}

/// PyTorch's own memory at the moment of the snapshot.
struct Found {
    /// Layouts of PyTorch's objects; `None` if Python has no tensor object.
    layouts: Option<Result<Layouts, LayoutError>>,
    /// Pairs of a tensor's Python object and its `TensorImpl`.
    tensors: Vec<(u64, u64)>,
    /// Tensor objects without a `TensorImpl`: under construction or destruction.
    empty: Vec<u64>,
    /// All PyTorch objects reachable from these tensors.
    graph: RawGraph,
    /// `TensorImpl`s among them that Python has no object of, once [`HeapReader::touch`] has dropped the graph.
    reached: Vec<u64>,
    /// The allocator's blocks; `None` if CUDA is not loaded.
    allocator: Allocator,
    /// Objects of a server's scheduler and its workers.
    serving: ServingObjects,
    kv: KvCaches,
    tags: Vec<TaggedAllocation>,
    tagged_pools: Vec<TaggedPool>,
}

impl Default for Found {
    fn default() -> Self {
        Self {
            layouts: None,
            tensors: Vec::new(),
            empty: Vec::new(),
            graph: RawGraph::default(),
            reached: Vec::new(),
            allocator: Ok(None),
            serving: ServingObjects::default(),
            kv: KvCaches::default(),
            tags: Vec::new(),
            tagged_pools: Vec::new(),
        }
    }
}

impl Found {
    /// Number of elements of a tensor object with one dimension.
    fn length(&self, object: u64) -> Option<u64> {
        let known = self.tensors.iter().find(|known| known.0 == object)?;
        let shape = &self.graph.tensor(known.1)?.geometry.as_ref()?.shape;
        (shape.len() == 1).then(|| shape.first().copied())?
    }

    fn read(
        image: &Image<impl ReadMemory>,
        moment: &HeapScan,
        version: Option<&str>,
        allocator: Allocator,
    ) -> Self {
        let mut found = Found {
            allocator,
            ..Found::default()
        };
        let objects = &moment.objects.tensors;
        if objects.is_empty() {
            return found;
        }
        let layouts = Layouts::find(image, version, objects, moment.mode);
        if let Ok(layouts) = &layouts {
            found.read_tensors(image, layouts, objects, Vec::new());
        }
        found.layouts = Some(layouts);
        found
    }

    /// Returns the most tensors that are read, if there are more.
    fn limit(&self) -> Option<u64> {
        let is_reached = self.graph.left_out.has_more_tensors;
        is_reached.then_some(graph::MAX_REACHED as u64)
    }

    /// Reads the tensors of Python objects and further `TensorImpl`s, and what they lead to.
    fn read_tensors(
        &mut self,
        image: &Image<impl ReadMemory>,
        layouts: &Layouts,
        objects: &[u64],
        mut impls: Vec<u64>,
    ) {
        let reader = layouts.reader(image);
        for &object in objects {
            match reader.tensor_of(object) {
                Some(tensor) => self.tensors.push((object, tensor)),
                None => self.empty.push(object),
            }
        }
        impls.extend(self.tensors.iter().map(|&(_, tensor)| tensor));
        impls.sort_unstable();
        impls.dedup();
        self.graph = graph::collect(&reader, &impls, &[]);
    }
}

/// Returns the reason for which the lists of objects are incomplete.
fn missing_objects(broken: Option<Broken>) -> Option<std::sync::Arc<str>> {
    let reason = broken.filter(|broken| *broken != Broken::Allocating);
    reason.map(|broken| broken.to_string().into())
}

fn unread<R>(captured: &Captured<Found, R>) -> Vec<std::sync::Arc<str>> {
    let (moment, found) = (&captured.moment, &captured.more);
    let mut words = Vec::new();
    words.extend(
        (moment.broken == Some(Broken::Allocating)).then(|| INTERRUPTED_ALLOCATOR.to_owned()),
    );
    words.extend(missing_objects(moment.broken).map(|reason| format!("not all objects: {reason}")));
    words.extend(counted(
        moment.objects.unknown,
        "Python objects are of no class that can be read",
    ));
    if let Some(error) = moment.no_frames {
        words.push(format!("the variables of functions: {error}"));
    }
    let variables = &moment.variables;
    for (count, of) in [
        (
            variables.frames_left_out,
            "frames of functions, or of threads",
        ),
        (variables.left_out, "variables of functions"),
    ] {
        let unread = format!("{of}, which are too many or cannot be read: names may be missing");
        words.extend(counted(count, &unread));
    }
    let origin = found
        .layouts
        .as_ref()
        .and_then(|layouts| layouts.as_ref().ok());
    if origin.is_some_and(|layouts| layouts.origin != LayoutOrigin::Version) {
        let unknown = "this version of PyTorch is not known: its tensors are read as they showed themselves to be \
                       laid out";
        words.push(unknown.to_owned());
    }
    words.extend(counted(
        found.empty.len() as u64,
        "tensor objects of Python hold no tensor",
    ));
    words.extend(found.graph.left_out.words());
    if let Err(error) = &found.allocator {
        words.push(format!("the allocator's blocks: {error}"));
    }
    let extent = captured.extent;
    if extent.full {
        let is_said = moment.broken == Some(Broken::TooLarge);
        words.extend((!is_said).then(|| format!("names may be missing: {}", Broken::TooLarge)));
    } else {
        let wanted =
            "pieces of memory that were wanted only after the process ran on: names may be missing";
        words.extend(counted(extent.missed, wanted));
    }
    words.into_iter().map(Into::into).collect()
}

fn counted(count: u64, words: &str) -> Option<String> {
    (count > 0).then(|| format!("{count} {words}"))
}
