//! Scheduler in another process than the tensors of its cache, as vLLM's EngineCore with several workers.

use super::ServingObjects;
use crate::event::{KvCaches, Tgid};
use crate::process::maps::Maps;
use crate::process::memory::ProcessMemory;
use crate::python::heap::Heap;
use crate::python::heap::capture::{CaptureError, CaptureMode, HeapReader, HeapScan, capture};
use crate::python::heap::collector::Broken;
use crate::python::heap::image::Image;
use crate::python::heap::progress::ReadProgress;
use crate::python::layout::PythonLayout;
use crate::python::{DetectError, PythonProcess};

/// Reasons why the scheduler's process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    #[error("{0}")]
    Python(#[from] DetectError),
    #[error("{0}")]
    Heap(#[from] CaptureError),
}

/// Reads the pools of a scheduler's process.
pub fn pools_of(tgid: Tgid, manner: CaptureMode) -> Result<KvCaches, SchedulerError> {
    let maps = Maps::of(tgid).map_err(|error| DetectError::of_access(tgid, error))?;
    let python = PythonProcess::detect_in(tgid, &maps)?;
    let layout = &python.layout;
    let reader = SchedulerReader { layout };
    let captured = capture(&python, manner, &ReadProgress::default(), &reader)?;
    let mut caches = captured.result;
    for pool in &mut caches.pools {
        pool.scheduler = Some(tgid);
    }
    Ok(caches)
}

struct SchedulerReader<'a> {
    layout: &'a PythonLayout,
}

impl SchedulerReader<'_> {
    /// Runs `read` with the objects and the classes that the scan has found.
    fn with_heap<T>(
        &self,
        image: &Image<ProcessMemory>,
        moment: &mut HeapScan,
        read: impl FnOnce(&Heap<'_, Image<ProcessMemory>>, &HeapScan) -> T,
    ) -> T {
        let heap = Heap::with_classes(image, self.layout, std::mem::take(&mut moment.classes));
        let found = read(&heap, moment);
        moment.classes = heap.into_classes();
        found
    }
}

impl HeapReader for SchedulerReader<'_> {
    type Tables = ();
    type Found = (ServingObjects, KvCaches);
    type Known = ServingObjects;
    type Output = KvCaches;

    fn tables(&self, _: &Image<ProcessMemory>) {}

    fn disagreement(&self, (): &()) -> Option<Broken> {
        None
    }

    fn read(&self, image: &Image<ProcessMemory>, moment: &mut HeapScan, (): ()) -> Self::Found {
        self.with_heap(image, moment, |heap, moment| {
            let objects = ServingObjects::find(heap, &moment.objects.objects);
            let caches = objects.pools(heap, |_| None, moment.mode);
            (objects, caches)
        })
    }

    fn known(&self, _: &Image<ProcessMemory>, (objects, _): Self::Found) -> ServingObjects {
        objects
    }

    fn follow(&self, image: &Image<ProcessMemory>, _: &HeapScan, known: &ServingObjects) {
        known.follow(&Heap::of(image, self.layout));
    }

    fn conclude(
        &self,
        _: &Image<ProcessMemory>,
        _: &mut HeapScan,
        (_, caches): &mut Self::Found,
    ) -> KvCaches {
        std::mem::take(caches)
    }

    /// Everything was read with the objects.
    fn touch(&self, _: &Image<ProcessMemory>, _: &mut HeapScan, _: &mut Self::Found) {}
}
